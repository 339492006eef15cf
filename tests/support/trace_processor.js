// Perfetto's trace_processor under node: requests of its RPC come on stdin, replies go to stdout.
//
// Its WebAssembly, and the script that runs it, are those of Perfetto's page; argv[2] is their
// folder. The script is made for a worker of a browser, and gets here what it uses of one.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

class XMLHttpRequest {
  open(method, url) { this.path = path.join(folder, path.basename(url)); }
  send() { this.response = fs.readFileSync(this.path); }
}

const worker = {
  console: { log: console.error, warn: console.error, error: console.error },
  location: { href: "http://localhost/" },
  process: undefined, // it refuses to run under node
  TextDecoder, URL, WebAssembly, WorkerGlobalScope: class {}, XMLHttpRequest,
  performance, setTimeout,
};
worker.self = worker;
const text = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
vm.compileFunction(text, Object.keys(worker))(...Object.values(worker));

function postMessage(reply) {
  for (let at = 0; at < reply.length;) at += fs.writeSync(1, reply, at);
}
const port = { postMessage };
worker.onmessage({ data: port });
process.stdin.on("data", (data) => port.onmessage({ data }));
