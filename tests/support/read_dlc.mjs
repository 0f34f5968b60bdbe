// Prints what Netron reads in the records of a DLC, as JSON: its graph's name, tensors and nodes.
// node read_dlc.mjs <folder of Netron's modules> <folder of the records>
import { readdirSync, readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [netron, records] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${netron}/${name}`));
const { ModelFactory } = await load('dlc.js');

class Record {
    constructor(bytes) {
        this.bytes = bytes;
        this.length = bytes.length;
        this.position = 0;
    }

    peek(count) {
        return this.bytes.subarray(this.position, count === undefined ? this.length : this.position + count);
    }

    read(count) {
        const found = this.peek(count);
        this.position += found.length;
        return found;
    }

    seek(position) {
        this.position = position;
    }

    skip(count) {
        this.position += count;
    }
}

const found = readdirSync(records).map((name) => [name, new Record(new Uint8Array(readFileSync(`${records}/${name}`)))]);
const entries = new Map(found);
const context = {
    peek: async () => entries,
    set: (_, container) => container,
    require: (name) => load(`${name.replace('./', '')}.js`),
    metadata: async () => ({ type: (name) => ({ name }), attribute: () => null }),
    fetch: async (name) => ({ stream: entries.get(name) }),
};
const factory = new ModelFactory();
context.value = await factory.match(context);
await factory.open(context);
const [graph] = context.value.graphs;
console.log(JSON.stringify({
    graphs: context.value.graphs.length,
    name: graph.name,
    tensors: graph.tensors.map(({ name, dtype, shape, location, data }) =>
        ({ name, dtype, shape: Array.from(shape), location, bytes: data ? data.length : null })),
    nodes: graph.nodes.map(({ name, type, inputs, outputs }) => ({ name, type, inputs, outputs })),
}));
