"""Settings of ReFrame for one machine without a scheduler; a site has its own."""

site_configuration = {
    "systems": [
        {
            "name": "here",
            "descr": "this machine",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "default",
                    "scheduler": "local",
                    "launcher": "mpirun",
                    "environs": ["default"],
                }
            ],
        }
    ],
    "environments": [{"name": "default", "cc": "cc", "cxx": "c++", "ftn": "f90"}],
}
