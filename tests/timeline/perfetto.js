// Asks Perfetto's own trace processor about a trace: node perfetto.js FOLDER TRACE SQL..., where FOLDER holds
// engine_bundle.js and its .wasm files as Perfetto's web page ships them. Prints a JSON list: what the one text column of
// each query's first row holds. The engine is a web worker that speaks protocol buffers; here it runs in a bare context.
"use strict";
const fs = require("fs"), path = require("path"), vm = require("vm");
const [folder, trace, ...queries] = process.argv.slice(2);

const varint = (n) => { const out = []; for (; n > 127; n = Math.floor(n / 128)) out.push((n % 128) | 128); return [...out, n]; };
const field = (number, body) => typeof body === "number" ? [varint(number * 8), varint(body)].flat()
  : Buffer.concat([Buffer.from([...varint(number * 8 + 2), ...varint(body.length)]), Buffer.from(body)]);
const message = (...fields) => Buffer.concat(fields.map((f) => Buffer.from(f)));

function fields(bytes) {  // [[number, value or bytes], ...]
  const found = [];
  let at = 0;
  const number = () => { let n = 0, factor = 1; for (;;) { const b = bytes[at++]; n += (b & 127) * factor; factor *= 128; if (b < 128) return n; } };
  while (at < bytes.length) {
    const tag = number(), kind = tag % 8, id = (tag - kind) / 8;
    if (kind === 0) found.push([id, number()]);
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else { const length = number(); found.push([id, bytes.subarray(at, at + length)]); at += length; }
  }
  return found;
}
const all = (bytes, id) => fields(bytes).filter(([n]) => n === id).map(([, body]) => body);

const self = { location: { href: "" } };
class XMLHttpRequest {  // the engine reads its .wasm file with one
  open(_, name) { this.name = name; }
  send() { this.response = Uint8Array.from(fs.readFileSync(path.join(folder, path.basename(this.name)))).buffer; }
}
const quiet = { log() {}, warn() {}, error() {} };
const world = vm.createContext({ self, XMLHttpRequest, console: quiet, TextDecoder, TextEncoder, performance,
  crypto: globalThis.crypto, setTimeout, URL, WorkerGlobalScope: class {} });
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), world);

const Bytes = vm.runInContext("Uint8Array", world);  // that world has types of its own
const APPEND = 1, FINALIZE = 2, QUERY = 3;
let sequence = 0;
const replies = [];
const port = { postMessage: (bytes) => replies.push(Buffer.from(bytes)) };
const send = (method, ...more) => {
  replies.length = 0;
  const rpc = message(field(1, ++sequence), field(2, method), ...more);
  port.onmessage({ data: new Bytes(field(1, rpc)) });
  return replies.flatMap((stream) => all(stream, 1));
};
const ask = (sql) => {
  let text = "";
  for (const rpc of send(QUERY, field(103, field(1, Buffer.from(sql)))))
    for (const result of all(rpc, 203)) {
      for (const error of all(result, 2)) if (error.length) throw new Error(String(error));
      for (const batch of all(result, 3)) for (const cells of all(batch, 5)) text += cells.toString("utf8");
    }
  return JSON.parse(text.split("\0")[0]);
};
const answer = () => {
  self.onmessage({ data: port });
  for (const rpc of send(APPEND, field(101, fs.readFileSync(trace))))
    for (const result of all(rpc, 201)) for (const error of all(result, 2)) if (error.length) throw new Error(String(error));
  send(FINALIZE);
  console.log(JSON.stringify(queries.map(ask)));
  process.exit(0);
};
setTimeout(answer, 50);  // the engine is compiled by now, and ready when the promises are settled
