// Runs llama.cpp on one GGUF file: reads a job as JSON from stdin, writes the answers as JSON to stdout.
//
//   {"model": PATH, "context": TOKENS, "vocabulary_only": BOOL, "requests": [{"kind": ..., ...}]}
//
// Keys and values are cached in float32, so that only the file decides how near the scores are to those of transformers.
import {text} from "node:stream/consumers";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const job = JSON.parse(await text(process.stdin));
const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, progressLogs: false, maxThreads: 1,
    logLevel: LlamaLogLevel.warn, logger: (level, message) => process.stderr.write(`${level}: ${message}\n`)
});
const model = await llama.loadModel({modelPath: job.model, gpuLayers: 0, vocabOnly: job.vocabulary_only ?? false});

let sequence = null;

/** An empty sequence of the one context. */
async function emptySequence() {
    if (sequence === null) {
        const context = await model.createContext({
            contextSize: job.context, batchSize: job.context, flashAttention: false, swaFullCache: true,
            experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32", threads: 1
        });
        sequence = context.getSequence();
    }
    await sequence.clearHistory();
    return sequence;
}

const answers = {
    /** What the file says of its vocabulary. */
    information: () => ({
        architecture: model.architecture,
        train_context: model.trainContextSize,
        bos: model.tokens.bos,
        eos: model.tokens.eos,
        eot: model.tokens.eot,
        adds_bos: model.tokens.shouldPrependBosToken,
        adds_eos: model.tokens.shouldAppendEosToken,
        end_of_generation: Array.from(model.iterateAllTokens()).filter((token) => model.isEogToken(token))
    }),

    /** Token ids of each text; with `special`, tokens such as <s> are found in it. */
    tokenize: ({texts, special}) => texts.map((each) => model.tokenize(each, special ?? false)),

    /** The text of each list of token ids. */
    detokenize: ({tokens, special}) => tokens.map((each) => model.detokenize(each, special ?? false)),

    /** log p(next token) for the whole vocabulary, after each of the tokens: [tokens, vocabulary]. */
    log_probabilities: async ({tokens}) => {
        const at = await emptySequence();
        const wanted = {generateNext: {probabilities: true, options: {temperature: 0}}};
        const found = await at.controlledEvaluate(tokens.map((token) => [token, wanted]));
        return found.map(({next}) => {
            const row = new Array(next.probabilities.size).fill(null);
            for (const [token, probability] of next.probabilities)
                row[token] = Math.log(probability);
            return row;
        });
    },

    /** So many tokens that follow, each the most probable one. */
    greedy: async ({tokens, count}) => {
        const at = await emptySequence();
        const made = [];
        let given = tokens;
        while (made.length < count) {
            const last = [given.at(-1), {generateNext: {token: true, options: {temperature: 0}}}];
            const found = await at.controlledEvaluate([...given.slice(0, -1), last]);
            given = [found.at(-1).next.token];
            made.push(given[0]);
        }
        return made;
    },

    /** The embedding of each list of token ids or text, as the file says how to pool. */
    embed: async ({inputs}) => {
        const context = await model.createEmbeddingContext({contextSize: job.context, batchSize: job.context, threads: 1});
        const found = [];
        for (const each of inputs)
            found.push((await context.getEmbeddingFor(each)).vector);
        await context.dispose();
        return found;
    }
};

const found = [];
for (const request of job.requests)
    found.push(await answers[request.kind](request));
await new Promise((written) => process.stdout.write(JSON.stringify(found), written));
process.exit(0);
