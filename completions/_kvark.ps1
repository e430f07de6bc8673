
using namespace System.Management.Automation
using namespace System.Management.Automation.Language

Register-ArgumentCompleter -Native -CommandName 'kvark' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $commandElements = $commandAst.CommandElements
    $command = @(
        'kvark'
        for ($i = 1; $i -lt $commandElements.Count; $i++) {
            $element = $commandElements[$i]
            if ($element -isnot [StringConstantExpressionAst] -or
                $element.StringConstantType -ne [StringConstantType]::BareWord -or
                $element.Value.StartsWith('-') -or
                $element.Value -eq $wordToComplete) {
                break
        }
        $element.Value
    }) -join ';'

    $completions = @(switch ($command) {
        'kvark' {
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('-V', '-V ', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('--version', '--version', [CompletionResultType]::ParameterName, 'Print version')
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Complete a prompt')
            [CompletionResult]::new('chat', 'chat', [CompletionResultType]::ParameterValue, 'Talk to a model')
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Serve an OpenAI-compatible API, and a page to chat and to watch the cache')
            [CompletionResult]::new('ps', 'ps', [CompletionResultType]::ParameterValue, 'Show the models of a running kvark serve')
            [CompletionResult]::new('launch', 'launch', [CompletionResultType]::ParameterValue, 'Run a coding agent on the models of a running kvark serve')
            [CompletionResult]::new('prefix', 'prefix', [CompletionResultType]::ParameterValue, 'Compute a text once, for runs, chats and servers that begin with it')
            [CompletionResult]::new('score', 'score', [CompletionResultType]::ParameterValue, 'Score a text: the log-probability of every token given those before it')
            [CompletionResult]::new('tune-kv', 'tune-kv', [CompletionResultType]::ParameterValue, 'Choose how every layer stores its keys and values, by what it costs on a text')
            [CompletionResult]::new('embed', 'embed', [CompletionResultType]::ParameterValue, 'Turn texts into embeddings')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measure tokens per second, like llama-bench')
            [CompletionResult]::new('agents-bench', 'agents-bench', [CompletionResultType]::ParameterValue, 'Replay agents'' requests against servers, and count the tokens computed again')
            [CompletionResult]::new('exec', 'exec', [CompletionResultType]::ParameterValue, 'Run any model once on given or random tensors')
            [CompletionResult]::new('export', 'export', [CompletionResultType]::ParameterValue, 'Export a model to a .pt2 file with PyTorch')
            [CompletionResult]::new('emit-c', 'emit-c', [CompletionResultType]::ParameterValue, 'Write a model as a C program in which every address is fixed')
            [CompletionResult]::new('quantize', 'quantize', [CompletionResultType]::ParameterValue, 'Make a model smaller: write it as a GGUF file in another quantisation')
            [CompletionResult]::new('convert', 'convert', [CompletionResultType]::ParameterValue, 'Write a folder of Hugging Face as a GGUF file')
            [CompletionResult]::new('plan', 'plan', [CompletionResultType]::ParameterValue, 'Show the memory that a run needs')
            [CompletionResult]::new('show', 'show', [CompletionResultType]::ParameterValue, 'Show what a model is: size, context, template, licence, defaults')
            [CompletionResult]::new('inspect', 'inspect', [CompletionResultType]::ParameterValue, 'Show what is in a model file, a snapshot or a prefix file')
            [CompletionResult]::new('tokenize', 'tokenize', [CompletionResultType]::ParameterValue, 'Turn text into token ids')
            [CompletionResult]::new('detokenize', 'detokenize', [CompletionResultType]::ParameterValue, 'Turn token ids into text')
            [CompletionResult]::new('pull', 'pull', [CompletionResultType]::ParameterValue, 'Download a model: of the catalogue, of the Hugging Face hub, or from an address')
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List models: the catalogue, downloaded ones, Ollama''s')
            [CompletionResult]::new('rm', 'rm', [CompletionResultType]::ParameterValue, 'Delete a downloaded model, an unfinished download, or packed weights')
            [CompletionResult]::new('config', 'config', [CompletionResultType]::ParameterValue, 'Show the configuration and where each value comes from')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print a script that completes commands and flags in your shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Print a manual page')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'kvark;run' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-p', '-p', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('--prompt', '--prompt', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--file', '--file', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--token-ids', '--token-ids', [CompletionResultType]::ParameterName, 'The prompt as token ids, such as 1,2,3')
            [CompletionResult]::new('--system', '--system', [CompletionResultType]::ParameterName, 'System message of --chat or --messages')
            [CompletionResult]::new('--messages', '--messages', [CompletionResultType]::ParameterName, 'Conversation to continue: a JSON list of {"role": ..., "content": ...}; - for standard input. A prompt is added to it as the user''s message')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Maximum number of tokens to generate; -1 for no limit but the model''s end of text or a full context')
            [CompletionResult]::new('--predict', '--predict', [CompletionResultType]::ParameterName, 'Maximum number of tokens to generate; -1 for no limit but the model''s end of text or a full context')
            [CompletionResult]::new('--stop', '--stop', [CompletionResultType]::ParameterName, 'Stop generating at this string; may be given several times')
            [CompletionResult]::new('--parallel', '--parallel', [CompletionResultType]::ParameterName, 'Generate K continuations in one batch, with seeds --seed, --seed + 1, ...')
            [CompletionResult]::new('--prompt-cache', '--prompt-cache', [CompletionResultType]::ParameterName, 'Restore the longest common prefix of the prompt from FILE and save the whole text to FILE for the next run; a conversation of kvark chat is refused')
            [CompletionResult]::new('--prefix', '--prefix', [CompletionResultType]::ParameterName, 'Begin with a file of kvark prefix build, whose tokens come before the prompt: the processes that use it share its keys and values. With --chat, its text is the system message')
            [CompletionResult]::new('--logprobs', '--logprobs', [CompletionResultType]::ParameterName, 'With --json, the log-probability of every token and those of the K most likely ones')
            [CompletionResult]::new('--cache', '--cache', [CompletionResultType]::ParameterName, 'Kind of the cache: contiguous (one sequence), cells (sequences that share cells) or tree (one sequence and candidates) [default: contiguous, or cells for --parallel and --spec-type]')
            [CompletionResult]::new('--json-schema', '--json-schema', [CompletionResultType]::ParameterName, 'JSON schema that the output follows: the schema itself or a file; {} for any JSON')
            [CompletionResult]::new('--grammar', '--grammar', [CompletionResultType]::ParameterName, 'File with a grammar that the output follows: GBNF as llama.cpp has it, or Lark if its name ends with .lark')
            [CompletionResult]::new('--regex', '--regex', [CompletionResultType]::ParameterName, 'Regular expression that the whole output matches')
            [CompletionResult]::new('--chat-template', '--chat-template', [CompletionResultType]::ParameterName, 'Chat template to use instead of the model''s own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7, phi3, phi4, vicuna, zephyr, or a file with a Jinja template')
            [CompletionResult]::new('--reasoning', '--reasoning', [CompletionResultType]::ParameterName, 'Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template makes of it)')
            [CompletionResult]::new('--reasoning-budget', '--reasoning-budget', [CompletionResultType]::ParameterName, 'Most tokens of reasoning in an answer, after which the model has to answer; -1 for no limit')
            [CompletionResult]::new('--keep', '--keep', [CompletionResultType]::ParameterName, 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]')
            [CompletionResult]::new('--spec-type', '--spec-type', [CompletionResultType]::ParameterName, 'Source of candidate tokens, which the model verifies several at a time: ngram (repetitions of the prompt and the answer), draft (a smaller model, -md), eagle3 (a head on the model''s features, -md), mtp (the head that the model itself carries, or a gemma4-assistant, -md), auto (what is there, where it pays) or none [default: none, or the kind of -md]')
            [CompletionResult]::new('--model-draft', '--model-draft', [CompletionResultType]::ParameterName, 'Smaller model with the same vocabulary, Eagle3 head or gemma4-assistant that proposes tokens; -md too. A head beside the model, named NAME.eagle3.gguf, is found without it, and the default model has one. mtp is the head that the model itself carries. A head is a GGUF file, a safetensors file with its config.json, or their folder')
            [CompletionResult]::new('--spec-tree', '--spec-tree', [CompletionResultType]::ParameterName, 'Most candidates of a round [default: 8]')
            [CompletionResult]::new('--spec-depth', '--spec-depth', [CompletionResultType]::ParameterName, 'Most candidates that a round can accept: the depth of the tree [default: 8]')
            [CompletionResult]::new('--spec-draft-n-max', '--spec-draft-n-max', [CompletionResultType]::ParameterName, 'Most candidates that a round can accept: the depth of the tree [default: 8]')
            [CompletionResult]::new('--spec-topk', '--spec-topk', [CompletionResultType]::ParameterName, 'Most children of a candidate; 1 proposes a chain [default: 3]')
            [CompletionResult]::new('--spec-trace', '--spec-trace', [CompletionResultType]::ParameterName, 'Write a page that draws the tree of every round, with what was accepted')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--temp', '--temp', [CompletionResultType]::ParameterName, 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]')
            [CompletionResult]::new('--top-k', '--top-k', [CompletionResultType]::ParameterName, 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]')
            [CompletionResult]::new('--top-p', '--top-p', [CompletionResultType]::ParameterName, 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]')
            [CompletionResult]::new('--min-p', '--min-p', [CompletionResultType]::ParameterName, 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]')
            [CompletionResult]::new('--top-n-sigma', '--top-n-sigma', [CompletionResultType]::ParameterName, 'Sample from tokens whose logits are at most N standard deviations below the highest one; 0 or less for all [default: -1]')
            [CompletionResult]::new('--typical', '--typical', [CompletionResultType]::ParameterName, 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]')
            [CompletionResult]::new('--typical-p', '--typical-p', [CompletionResultType]::ParameterName, 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]')
            [CompletionResult]::new('--xtc-probability', '--xtc-probability', [CompletionResultType]::ParameterName, 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]')
            [CompletionResult]::new('--xtc-threshold', '--xtc-threshold', [CompletionResultType]::ParameterName, 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]')
            [CompletionResult]::new('--mirostat', '--mirostat', [CompletionResultType]::ParameterName, 'Mirostat: 2 removes tokens that are too surprising instead of all other samplers that remove tokens; 0 for none [default: 0]')
            [CompletionResult]::new('--mirostat-ent', '--mirostat-ent', [CompletionResultType]::ParameterName, 'Mirostat: the surprise of tokens to reach, in bits [default: 5]')
            [CompletionResult]::new('--mirostat-lr', '--mirostat-lr', [CompletionResultType]::ParameterName, 'Mirostat: how fast the limit of the surprise follows [default: 0.1]')
            [CompletionResult]::new('--repeat-penalty', '--repeat-penalty', [CompletionResultType]::ParameterName, 'Penalty on tokens among the last --repeat-last-n: divides positive and multiplies negative logits; 1 for none [default: that of genai_config.json, or 1]')
            [CompletionResult]::new('--frequency-penalty', '--frequency-penalty', [CompletionResultType]::ParameterName, 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]')
            [CompletionResult]::new('--presence-penalty', '--presence-penalty', [CompletionResultType]::ParameterName, 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]')
            [CompletionResult]::new('--repeat-last-n', '--repeat-last-n', [CompletionResultType]::ParameterName, 'Number of last tokens that the penalties consider; -1 for all [default: 64]')
            [CompletionResult]::new('--dry-multiplier', '--dry-multiplier', [CompletionResultType]::ParameterName, 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]')
            [CompletionResult]::new('--dry-base', '--dry-base', [CompletionResultType]::ParameterName, 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]')
            [CompletionResult]::new('--dry-allowed-length', '--dry-allowed-length', [CompletionResultType]::ParameterName, 'Length of a repetition from which DRY penalises it [default: 2]')
            [CompletionResult]::new('--dry-penalty-last-n', '--dry-penalty-last-n', [CompletionResultType]::ParameterName, 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]')
            [CompletionResult]::new('--dry-sequence-breaker', '--dry-sequence-breaker', [CompletionResultType]::ParameterName, 'Texts across which DRY follows no repetition; may be given several times; none for no text [default: "\n" ":" "\"" "*"]')
            [CompletionResult]::new('--samplers', '--samplers', [CompletionResultType]::ParameterName, 'Samplers in the order in which they run; those that are not named do not run [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]')
            [CompletionResult]::new('-l', '-l', [CompletionResultType]::ParameterName, 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times')
            [CompletionResult]::new('--logit-bias', '--logit-bias', [CompletionResultType]::ParameterName, 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times')
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'Seed of the random numbers; -1 draws one [default: -1]')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'Seed of the random numbers; -1 draws one [default: -1]')
            [CompletionResult]::new('--chat', '--chat', [CompletionResultType]::ParameterName, 'Treat the prompt as a user''s message and apply the model''s chat template')
            [CompletionResult]::new('--ignore-eos', '--ignore-eos', [CompletionResultType]::ParameterName, 'Continue past the model''s end of text')
            [CompletionResult]::new('--no-display-prompt', '--no-display-prompt', [CompletionResultType]::ParameterName, 'Do not print the prompt')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print no progress and no statistics')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print no progress and no statistics')
            [CompletionResult]::new('--special', '--special', [CompletionResultType]::ParameterName, 'Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text')
            [CompletionResult]::new('--context-shift', '--context-shift', [CompletionResultType]::ParameterName, 'When the context is full, drop the older half of the tokens after the first --keep and continue')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;chat' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--system', '--system', [CompletionResultType]::ParameterName, 'System message; replaces that of the conversation in --prompt-cache')
            [CompletionResult]::new('-p', '-p', [CompletionResultType]::ParameterName, 'The first message')
            [CompletionResult]::new('--prompt', '--prompt', [CompletionResultType]::ParameterName, 'The first message')
            [CompletionResult]::new('--prompt-cache', '--prompt-cache', [CompletionResultType]::ParameterName, 'Continue the conversation saved in FILE, if it exists, and save to FILE after every turn; a prompt of kvark run is refused')
            [CompletionResult]::new('--prefix', '--prefix', [CompletionResultType]::ParameterName, 'Begin with a file of kvark prefix build --chat: its text is the system message, and the processes that use it share its keys and values')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Maximum number of tokens per answer; -1 for no limit but the model''s end of turn or a full context')
            [CompletionResult]::new('--predict', '--predict', [CompletionResultType]::ParameterName, 'Maximum number of tokens per answer; -1 for no limit but the model''s end of turn or a full context')
            [CompletionResult]::new('--stop', '--stop', [CompletionResultType]::ParameterName, 'Stop answers at this string; may be given several times')
            [CompletionResult]::new('--json-schema', '--json-schema', [CompletionResultType]::ParameterName, 'JSON schema that the output follows: the schema itself or a file; {} for any JSON')
            [CompletionResult]::new('--grammar', '--grammar', [CompletionResultType]::ParameterName, 'File with a grammar that the output follows: GBNF as llama.cpp has it, or Lark if its name ends with .lark')
            [CompletionResult]::new('--regex', '--regex', [CompletionResultType]::ParameterName, 'Regular expression that the whole output matches')
            [CompletionResult]::new('--chat-template', '--chat-template', [CompletionResultType]::ParameterName, 'Chat template to use instead of the model''s own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7, phi3, phi4, vicuna, zephyr, or a file with a Jinja template')
            [CompletionResult]::new('--reasoning', '--reasoning', [CompletionResultType]::ParameterName, 'Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template makes of it)')
            [CompletionResult]::new('--reasoning-budget', '--reasoning-budget', [CompletionResultType]::ParameterName, 'Most tokens of reasoning in an answer, after which the model has to answer; -1 for no limit')
            [CompletionResult]::new('--keep', '--keep', [CompletionResultType]::ParameterName, 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]')
            [CompletionResult]::new('--spec-type', '--spec-type', [CompletionResultType]::ParameterName, 'Source of candidate tokens, which the model verifies several at a time: ngram (repetitions of the prompt and the answer), draft (a smaller model, -md), eagle3 (a head on the model''s features, -md), mtp (the head that the model itself carries, or a gemma4-assistant, -md), auto (what is there, where it pays) or none [default: none, or the kind of -md]')
            [CompletionResult]::new('--model-draft', '--model-draft', [CompletionResultType]::ParameterName, 'Smaller model with the same vocabulary, Eagle3 head or gemma4-assistant that proposes tokens; -md too. A head beside the model, named NAME.eagle3.gguf, is found without it, and the default model has one. mtp is the head that the model itself carries. A head is a GGUF file, a safetensors file with its config.json, or their folder')
            [CompletionResult]::new('--spec-tree', '--spec-tree', [CompletionResultType]::ParameterName, 'Most candidates of a round [default: 8]')
            [CompletionResult]::new('--spec-depth', '--spec-depth', [CompletionResultType]::ParameterName, 'Most candidates that a round can accept: the depth of the tree [default: 8]')
            [CompletionResult]::new('--spec-draft-n-max', '--spec-draft-n-max', [CompletionResultType]::ParameterName, 'Most candidates that a round can accept: the depth of the tree [default: 8]')
            [CompletionResult]::new('--spec-topk', '--spec-topk', [CompletionResultType]::ParameterName, 'Most children of a candidate; 1 proposes a chain [default: 3]')
            [CompletionResult]::new('--spec-trace', '--spec-trace', [CompletionResultType]::ParameterName, 'Write a page that draws the tree of every round, with what was accepted')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--temp', '--temp', [CompletionResultType]::ParameterName, 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]')
            [CompletionResult]::new('--top-k', '--top-k', [CompletionResultType]::ParameterName, 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]')
            [CompletionResult]::new('--top-p', '--top-p', [CompletionResultType]::ParameterName, 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]')
            [CompletionResult]::new('--min-p', '--min-p', [CompletionResultType]::ParameterName, 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]')
            [CompletionResult]::new('--top-n-sigma', '--top-n-sigma', [CompletionResultType]::ParameterName, 'Sample from tokens whose logits are at most N standard deviations below the highest one; 0 or less for all [default: -1]')
            [CompletionResult]::new('--typical', '--typical', [CompletionResultType]::ParameterName, 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]')
            [CompletionResult]::new('--typical-p', '--typical-p', [CompletionResultType]::ParameterName, 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]')
            [CompletionResult]::new('--xtc-probability', '--xtc-probability', [CompletionResultType]::ParameterName, 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]')
            [CompletionResult]::new('--xtc-threshold', '--xtc-threshold', [CompletionResultType]::ParameterName, 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]')
            [CompletionResult]::new('--mirostat', '--mirostat', [CompletionResultType]::ParameterName, 'Mirostat: 2 removes tokens that are too surprising instead of all other samplers that remove tokens; 0 for none [default: 0]')
            [CompletionResult]::new('--mirostat-ent', '--mirostat-ent', [CompletionResultType]::ParameterName, 'Mirostat: the surprise of tokens to reach, in bits [default: 5]')
            [CompletionResult]::new('--mirostat-lr', '--mirostat-lr', [CompletionResultType]::ParameterName, 'Mirostat: how fast the limit of the surprise follows [default: 0.1]')
            [CompletionResult]::new('--repeat-penalty', '--repeat-penalty', [CompletionResultType]::ParameterName, 'Penalty on tokens among the last --repeat-last-n: divides positive and multiplies negative logits; 1 for none [default: that of genai_config.json, or 1]')
            [CompletionResult]::new('--frequency-penalty', '--frequency-penalty', [CompletionResultType]::ParameterName, 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]')
            [CompletionResult]::new('--presence-penalty', '--presence-penalty', [CompletionResultType]::ParameterName, 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]')
            [CompletionResult]::new('--repeat-last-n', '--repeat-last-n', [CompletionResultType]::ParameterName, 'Number of last tokens that the penalties consider; -1 for all [default: 64]')
            [CompletionResult]::new('--dry-multiplier', '--dry-multiplier', [CompletionResultType]::ParameterName, 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]')
            [CompletionResult]::new('--dry-base', '--dry-base', [CompletionResultType]::ParameterName, 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]')
            [CompletionResult]::new('--dry-allowed-length', '--dry-allowed-length', [CompletionResultType]::ParameterName, 'Length of a repetition from which DRY penalises it [default: 2]')
            [CompletionResult]::new('--dry-penalty-last-n', '--dry-penalty-last-n', [CompletionResultType]::ParameterName, 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]')
            [CompletionResult]::new('--dry-sequence-breaker', '--dry-sequence-breaker', [CompletionResultType]::ParameterName, 'Texts across which DRY follows no repetition; may be given several times; none for no text [default: "\n" ":" "\"" "*"]')
            [CompletionResult]::new('--samplers', '--samplers', [CompletionResultType]::ParameterName, 'Samplers in the order in which they run; those that are not named do not run [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]')
            [CompletionResult]::new('-l', '-l', [CompletionResultType]::ParameterName, 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times')
            [CompletionResult]::new('--logit-bias', '--logit-bias', [CompletionResultType]::ParameterName, 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times')
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'Seed of the random numbers; -1 draws one [default: -1]')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'Seed of the random numbers; -1 draws one [default: -1]')
            [CompletionResult]::new('-v', '-v', [CompletionResultType]::ParameterName, 'Print statistics after each answer')
            [CompletionResult]::new('--verbose', '--verbose', [CompletionResultType]::ParameterName, 'Print statistics after each answer')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print no banner, no progress and no notes on answers that --predict cut')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print no banner, no progress and no notes on answers that --predict cut')
            [CompletionResult]::new('--special', '--special', [CompletionResultType]::ParameterName, 'Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text')
            [CompletionResult]::new('--context-shift', '--context-shift', [CompletionResultType]::ParameterName, 'When the context is full, drop the older half of the tokens after the first --keep and continue')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;serve' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A model, as a flag; can be repeated')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A model, as a flag; can be repeated')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--model-draft', '--model-draft', [CompletionResultType]::ParameterName, 'Draft of the default model for requests with spec_type: a smaller model, an Eagle3 head, mtp for the head that the model itself carries, or none; -md too [default: the Eagle3 head that lies beside the model as NAME.eagle3.gguf]')
            [CompletionResult]::new('--spec-type', '--spec-type', [CompletionResultType]::ParameterName, 'Speculation of requests that state no spec_type: auto, ngram, draft, eagle3, mtp or none [default: auto with --model-draft, else none]')
            [CompletionResult]::new('--chat-template', '--chat-template', [CompletionResultType]::ParameterName, 'Chat template of all models instead of their own: a name (see kvark chat --help) or a file')
            [CompletionResult]::new('--chat-template-file', '--chat-template-file', [CompletionResultType]::ParameterName, 'Chat template of all models instead of their own: a name (see kvark chat --help) or a file')
            [CompletionResult]::new('--chat-template-kwargs', '--chat-template-kwargs', [CompletionResultType]::ParameterName, 'Variables of the chat template for all chats, such as ''{"enable_thinking": false}''; a request''s own count more')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Most tokens of any answer')
            [CompletionResult]::new('--predict', '--predict', [CompletionResultType]::ParameterName, 'Most tokens of any answer')
            [CompletionResult]::new('--n-predict', '--n-predict', [CompletionResultType]::ParameterName, 'Most tokens of any answer')
            [CompletionResult]::new('--host', '--host', [CompletionResultType]::ParameterName, 'Address to listen on; 0.0.0.0 for all networks')
            [CompletionResult]::new('--port', '--port', [CompletionResultType]::ParameterName, 'Port to listen on; 0 for any free one')
            [CompletionResult]::new('--parallel', '--parallel', [CompletionResultType]::ParameterName, 'Requests that run at once')
            [CompletionResult]::new('--slots', '--slots', [CompletionResultType]::ParameterName, 'Requests that run at once')
            [CompletionResult]::new('--np', '--np', [CompletionResultType]::ParameterName, 'Requests that run at once')
            [CompletionResult]::new('--queue', '--queue', [CompletionResultType]::ParameterName, 'Requests that wait for a slot; more are refused with 429')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Key that clients must send [default: KVARK_API_KEY, or none]')
            [CompletionResult]::new('--api-key-file', '--api-key-file', [CompletionResultType]::ParameterName, 'File with keys, one a line; each key sees its own conversations only')
            [CompletionResult]::new('--allow-host', '--allow-host', [CompletionResultType]::ParameterName, 'Host name by which clients may address the server, besides localhost; can be repeated')
            [CompletionResult]::new('--cors-origin', '--cors-origin', [CompletionResultType]::ParameterName, 'Web origin whose pages may use the API from a browser; * for all')
            [CompletionResult]::new('--cache-disk', '--cache-disk', [CompletionResultType]::ParameterName, 'Keep prefixes on disk, up to this size, in $KVARK_HOME/prefixes')
            [CompletionResult]::new('--conversations', '--conversations', [CompletionResultType]::ParameterName, 'Folder in which conversations are kept, or none: then they are gone when the server ends [default: prefixes/conversations in $KVARK_HOME]')
            [CompletionResult]::new('--cache-ram', '--cache-ram', [CompletionResultType]::ParameterName, 'Keep prefixes that leave the pool in this much memory, before they go to disk')
            [CompletionResult]::new('--cache-ram-types', '--cache-ram-types', [CompletionResultType]::ParameterName, 'With --cache-ram: smaller types in which they are stored one after the other when that memory is full, such as q8,q4. What comes back from them is an approximation')
            [CompletionResult]::new('--volatile', '--volatile', [CompletionResultType]::ParameterName, 'Lines of system messages that change in every request, as a regular expression: they go to the end of the last message, so that everything before stays computed. A message with "volatile": true does the same')
            [CompletionResult]::new('--volatile-place', '--volatile-place', [CompletionResultType]::ParameterName, 'Where volatile text goes: last, or drop (the model does not see it)')
            [CompletionResult]::new('--prefix', '--prefix', [CompletionResultType]::ParameterName, 'System message, from a text file, that is computed when a model is loaded, or a file of kvark prefix build, which is mapped. Chats and completions that begin with it share its keys and values')
            [CompletionResult]::new('--keep', '--keep', [CompletionResultType]::ParameterName, 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]')
            [CompletionResult]::new('--reasoning', '--reasoning', [CompletionResultType]::ParameterName, 'Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template makes of it)')
            [CompletionResult]::new('--reasoning-budget', '--reasoning-budget', [CompletionResultType]::ParameterName, 'Most tokens of reasoning in an answer, after which the model has to answer; -1 for no limit')
            [CompletionResult]::new('--timeout', '--timeout', [CompletionResultType]::ParameterName, 'Longest time of one answer in seconds')
            [CompletionResult]::new('--grace', '--grace', [CompletionResultType]::ParameterName, 'How long running answers may go on after Ctrl-C, in seconds')
            [CompletionResult]::new('--max-body', '--max-body', [CompletionResultType]::ParameterName, 'Largest size of a request')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--temp', '--temp', [CompletionResultType]::ParameterName, 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]')
            [CompletionResult]::new('--top-k', '--top-k', [CompletionResultType]::ParameterName, 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]')
            [CompletionResult]::new('--top-p', '--top-p', [CompletionResultType]::ParameterName, 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]')
            [CompletionResult]::new('--min-p', '--min-p', [CompletionResultType]::ParameterName, 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]')
            [CompletionResult]::new('--top-n-sigma', '--top-n-sigma', [CompletionResultType]::ParameterName, 'Sample from tokens whose logits are at most N standard deviations below the highest one; 0 or less for all [default: -1]')
            [CompletionResult]::new('--typical', '--typical', [CompletionResultType]::ParameterName, 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]')
            [CompletionResult]::new('--typical-p', '--typical-p', [CompletionResultType]::ParameterName, 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]')
            [CompletionResult]::new('--xtc-probability', '--xtc-probability', [CompletionResultType]::ParameterName, 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]')
            [CompletionResult]::new('--xtc-threshold', '--xtc-threshold', [CompletionResultType]::ParameterName, 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]')
            [CompletionResult]::new('--mirostat', '--mirostat', [CompletionResultType]::ParameterName, 'Mirostat: 2 removes tokens that are too surprising instead of all other samplers that remove tokens; 0 for none [default: 0]')
            [CompletionResult]::new('--mirostat-ent', '--mirostat-ent', [CompletionResultType]::ParameterName, 'Mirostat: the surprise of tokens to reach, in bits [default: 5]')
            [CompletionResult]::new('--mirostat-lr', '--mirostat-lr', [CompletionResultType]::ParameterName, 'Mirostat: how fast the limit of the surprise follows [default: 0.1]')
            [CompletionResult]::new('--repeat-penalty', '--repeat-penalty', [CompletionResultType]::ParameterName, 'Penalty on tokens among the last --repeat-last-n: divides positive and multiplies negative logits; 1 for none [default: that of genai_config.json, or 1]')
            [CompletionResult]::new('--frequency-penalty', '--frequency-penalty', [CompletionResultType]::ParameterName, 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]')
            [CompletionResult]::new('--presence-penalty', '--presence-penalty', [CompletionResultType]::ParameterName, 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]')
            [CompletionResult]::new('--repeat-last-n', '--repeat-last-n', [CompletionResultType]::ParameterName, 'Number of last tokens that the penalties consider; -1 for all [default: 64]')
            [CompletionResult]::new('--dry-multiplier', '--dry-multiplier', [CompletionResultType]::ParameterName, 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]')
            [CompletionResult]::new('--dry-base', '--dry-base', [CompletionResultType]::ParameterName, 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]')
            [CompletionResult]::new('--dry-allowed-length', '--dry-allowed-length', [CompletionResultType]::ParameterName, 'Length of a repetition from which DRY penalises it [default: 2]')
            [CompletionResult]::new('--dry-penalty-last-n', '--dry-penalty-last-n', [CompletionResultType]::ParameterName, 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]')
            [CompletionResult]::new('--dry-sequence-breaker', '--dry-sequence-breaker', [CompletionResultType]::ParameterName, 'Texts across which DRY follows no repetition; may be given several times; none for no text [default: "\n" ":" "\"" "*"]')
            [CompletionResult]::new('--samplers', '--samplers', [CompletionResultType]::ParameterName, 'Samplers in the order in which they run; those that are not named do not run [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]')
            [CompletionResult]::new('-l', '-l', [CompletionResultType]::ParameterName, 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times')
            [CompletionResult]::new('--logit-bias', '--logit-bias', [CompletionResultType]::ParameterName, 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times')
            [CompletionResult]::new('-s', '-s', [CompletionResultType]::ParameterName, 'Seed of the random numbers; -1 draws one [default: -1]')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'Seed of the random numbers; -1 draws one [default: -1]')
            [CompletionResult]::new('--context-shift', '--context-shift', [CompletionResultType]::ParameterName, 'When the context is full, drop the older half of the tokens after the first --keep and continue')
            [CompletionResult]::new('--lenient', '--lenient', [CompletionResultType]::ParameterName, 'Ignore unknown parameters with a warning instead of refusing the request')
            [CompletionResult]::new('--log-json', '--log-json', [CompletionResultType]::ParameterName, 'Write logs as JSON')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;ps' {
            [CompletionResult]::new('--host', '--host', [CompletionResultType]::ParameterName, 'Address of the server')
            [CompletionResult]::new('--port', '--port', [CompletionResultType]::ParameterName, 'Port of the server')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Key of the server [default: KVARK_API_KEY, or none]')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;launch' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'Name of a model of the server [default: its first one]')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'Name of a model of the server [default: its first one]')
            [CompletionResult]::new('--host', '--host', [CompletionResultType]::ParameterName, 'Address of the server')
            [CompletionResult]::new('--port', '--port', [CompletionResultType]::ParameterName, 'Port of the server')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Key of the server [default: KVARK_API_KEY, or none]')
            [CompletionResult]::new('--print', '--print', [CompletionResultType]::ParameterName, 'Print what to set and to run instead of running it')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;prefix' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-p', '-p', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('--prompt', '--prompt', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--file', '--file', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'The file to write')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'The file to write')
            [CompletionResult]::new('--on', '--on', [CompletionResultType]::ParameterName, 'Prefix file that the text continues; the new file has the tokens of both')
            [CompletionResult]::new('--chat-template', '--chat-template', [CompletionResultType]::ParameterName, 'Chat template to use instead of the model''s own: a name or a file, as for kvark run')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--chat', '--chat', [CompletionResultType]::ParameterName, 'Make the text the system message of chats, with the model''s chat template')
            [CompletionResult]::new('--special', '--special', [CompletionResultType]::ParameterName, 'Parse control tokens such as <|im_end|> in the text; without this flag they are plain text')
            [CompletionResult]::new('-q', '-q', [CompletionResultType]::ParameterName, 'Print no progress and no statistics')
            [CompletionResult]::new('--quiet', '--quiet', [CompletionResultType]::ParameterName, 'Print no progress and no statistics')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;score' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-p', '-p', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('--prompt', '--prompt', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--file', '--file', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--token-ids', '--token-ids', [CompletionResultType]::ParameterName, 'The sequence as token ids, such as 1,2,3')
            [CompletionResult]::new('--stride', '--stride', [CompletionResultType]::ParameterName, 'Score a text longer than the context in windows that begin N tokens apart; N is below the context''s size')
            [CompletionResult]::new('--ppl-stride', '--ppl-stride', [CompletionResultType]::ParameterName, 'Score a text longer than the context in windows that begin N tokens apart; N is below the context''s size')
            [CompletionResult]::new('--segment', '--segment', [CompletionResultType]::ParameterName, 'Print the nll of every N predicted tokens instead of every token')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--compare-precision', '--compare-precision', [CompletionResultType]::ParameterName, 'Score the text in every precision and print the mean difference of the log-probabilities, and how many of the most likely tokens differ')
            [CompletionResult]::new('--compare-cache', '--compare-cache', [CompletionResultType]::ParameterName, 'Score the text with keys and values in f16 and as the options store them, and print the mean difference of the log-probabilities, and how many of the most likely tokens differ')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;tune-kv' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-p', '-p', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('--prompt', '--prompt', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--file', '--file', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--budget', '--budget', [CompletionResultType]::ParameterName, 'The most memory for keys and values of a full context: a size such as 2GiB, or a share of what they take now such as 50%')
            [CompletionResult]::new('--types', '--types', [CompletionResultType]::ParameterName, 'The types to choose from, beside those of --cache-type-k and --cache-type-v')
            [CompletionResult]::new('--tokens', '--tokens', [CompletionResultType]::ParameterName, 'Use the first N tokens of the text')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Write the policy to FILE [default: standard output]')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Write the policy to FILE [default: standard output]')
            [CompletionResult]::new('--svg', '--svg', [CompletionResultType]::ParameterName, 'Draw the measured points to FILE')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;embed' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'File with one text per line; - for standard input')
            [CompletionResult]::new('--file', '--file', [CompletionResultType]::ParameterName, 'File with one text per line; - for standard input')
            [CompletionResult]::new('--pooling', '--pooling', [CompletionResultType]::ParameterName, 'How hidden states are pooled into one embedding [default: as the model states]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--normalize', '--normalize', [CompletionResultType]::ParameterName, 'Scale embeddings to unit length (the default)')
            [CompletionResult]::new('--no-normalize', '--no-normalize', [CompletionResultType]::ParameterName, 'Do not scale embeddings')
            [CompletionResult]::new('--truncate', '--truncate', [CompletionResultType]::ParameterName, 'Truncate texts longer than the model''s context instead of rejecting them')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;bench' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'A model, as a flag; can be repeated')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'A model, as a flag; can be repeated')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-p', '-p', [CompletionResultType]::ParameterName, 'Prompt lengths to measure; 0 for none')
            [CompletionResult]::new('--n-prompt', '--n-prompt', [CompletionResultType]::ParameterName, 'Prompt lengths to measure; 0 for none')
            [CompletionResult]::new('-n', '-n', [CompletionResultType]::ParameterName, 'Numbers of generated tokens to measure; 0 for none')
            [CompletionResult]::new('--n-gen', '--n-gen', [CompletionResultType]::ParameterName, 'Numbers of generated tokens to measure; 0 for none')
            [CompletionResult]::new('--n-prompt-gen', '--n-prompt-gen', [CompletionResultType]::ParameterName, 'A prompt and the tokens generated after it, measured together; -pg too, can be repeated')
            [CompletionResult]::new('-d', '-d', [CompletionResultType]::ParameterName, 'Number of tokens already in the context when a test starts')
            [CompletionResult]::new('--n-depth', '--n-depth', [CompletionResultType]::ParameterName, 'Number of tokens already in the context when a test starts')
            [CompletionResult]::new('-r', '-r', [CompletionResultType]::ParameterName, 'Repetitions of each test')
            [CompletionResult]::new('--repetitions', '--repetitions', [CompletionResultType]::ParameterName, 'Repetitions of each test')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Show the time of a step by op; with FILE, also draw it as SVG')
            [CompletionResult]::new('--roofline', '--roofline', [CompletionResultType]::ParameterName, 'Draw the ops of a step against the machine''s measured bandwidth and product rates as SVG')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Form of the results')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Form of the results')
            [CompletionResult]::new('--compare', '--compare', [CompletionResultType]::ParameterName, 'Print the ratio of every result to that of an earlier kvark bench --json')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--cache', '--cache', [CompletionResultType]::ParameterName, 'Measure cache operations and branches that share a prefix instead')
            [CompletionResult]::new('--restore', '--restore', [CompletionResultType]::ParameterName, 'Compare restoring a conversation of 2,000 tokens from a file with computing it again')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object, as -o json')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;agents-bench' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--url', '--url', [CompletionResultType]::ParameterName, 'A server that runs already, over plain HTTP; can be repeated. kvark''s own is then measured only if a MODEL is named')
            [CompletionResult]::new('--api', '--api', [CompletionResultType]::ParameterName, 'API of these servers: openai or ollama [default: found out]')
            [CompletionResult]::new('--served-model', '--served-model', [CompletionResultType]::ParameterName, 'Model that these servers are asked for [default: the one that each lists first]')
            [CompletionResult]::new('--api-key', '--api-key', [CompletionResultType]::ParameterName, 'Key of these servers')
            [CompletionResult]::new('--trace', '--trace', [CompletionResultType]::ParameterName, 'Replay this trace instead of the built-in one')
            [CompletionResult]::new('--requests', '--requests', [CompletionResultType]::ParameterName, 'Replay its first N requests only')
            [CompletionResult]::new('--parallel', '--parallel', [CompletionResultType]::ParameterName, 'Conversations whose whole context fits in the memory of kvark''s own server, and requests that it runs at once')
            [CompletionResult]::new('--np', '--np', [CompletionResultType]::ParameterName, 'Conversations whose whole context fits in the memory of kvark''s own server, and requests that it runs at once')
            [CompletionResult]::new('--cache-ram', '--cache-ram', [CompletionResultType]::ParameterName, 'Keep prefixes of kvark''s own server that leave its pool in this much memory')
            [CompletionResult]::new('--cache-disk', '--cache-disk', [CompletionResultType]::ParameterName, 'Keep prefixes of kvark''s own server on disk, up to this size, in a temporary folder')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16 (half the memory, rounded after every token)')
            [CompletionResult]::new('--state-interval', '--state-interval', [CompletionResultType]::ParameterName, 'Keep a snapshot of recurrent layers'' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]')
            [CompletionResult]::new('--run-mode', '--run-mode', [CompletionResultType]::ParameterName, 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode')
            [CompletionResult]::new('--precision', '--precision', [CompletionResultType]::ParameterName, 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token''s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--print-trace', '--print-trace', [CompletionResultType]::ParameterName, 'Print the built-in trace, as a beginning of another one')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('--preallocate', '--preallocate', [CompletionResultType]::ParameterName, 'Allocate all keys and values before the first token, as one region, instead of growing with the context')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;exec' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--method', '--method', [CompletionResultType]::ParameterName, 'Method to run [default: the model''s only method, or forward]')
            [CompletionResult]::new('--input', '--input', [CompletionResultType]::ParameterName, 'Input tensor')
            [CompletionResult]::new('--dim', '--dim', [CompletionResultType]::ParameterName, 'Dynamic size of generated inputs [default: that of the given inputs, or the smallest that the model accepts]')
            [CompletionResult]::new('--step', '--step', [CompletionResultType]::ParameterName, 'Token ids to feed to a decoder with static buffers; --step again continues. Several sequences are 1,2;7 and have the same number of parts in every step')
            [CompletionResult]::new('--seed', '--seed', [CompletionResultType]::ParameterName, 'Seed of generated inputs; -1 takes one from the clock')
            [CompletionResult]::new('--trace', '--trace', [CompletionResultType]::ParameterName, 'Print every intermediate result, or save them in FOLDER')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Save the outputs in FOLDER')
            [CompletionResult]::new('--repeat', '--repeat', [CompletionResultType]::ParameterName, 'Run N more times and report the times')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--executor', '--executor', [CompletionResultType]::ParameterName, 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node')
            [CompletionResult]::new('--passes', '--passes', [CompletionResultType]::ParameterName, 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]')
            [CompletionResult]::new('--random', '--random', [CompletionResultType]::ParameterName, 'Generate random tensors for inputs that are not given')
            [CompletionResult]::new('--profile', '--profile', [CompletionResultType]::ParameterName, 'Report the time of every node in these runs')
            [CompletionResult]::new('--placement', '--placement', [CompletionResultType]::ParameterName, 'Show which device runs which nodes: the CPU runs what a GPU has no kernels for')
            [CompletionResult]::new('--interpret', '--interpret', [CompletionResultType]::ParameterName, 'Same as --executor interpreted')
            [CompletionResult]::new('--no-packed-file', '--no-packed-file', [CompletionResultType]::ParameterName, 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;export' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'The file to write')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'The file to write')
            [CompletionResult]::new('--max-step', '--max-step', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step [default: 2048]')
            [CompletionResult]::new('--python', '--python', [CompletionResultType]::ParameterName, 'Python interpreter that has PyTorch')
            [CompletionResult]::new('--features', '--features', [CompletionResultType]::ParameterName, 'Add hidden states as a second output, for Eagle3 drafts')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;emit-c' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-o', '-o', [CompletionResultType]::ParameterName, 'Folder to write; one that an earlier emit-c wrote is replaced')
            [CompletionResult]::new('--output', '--output', [CompletionResultType]::ParameterName, 'Folder to write; one that an earlier emit-c wrote is replaced')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens [default: the length the model was trained for]')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16 or f8_e4m3')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16 or f8_e4m3')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads of the program')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads of the program')
            [CompletionResult]::new('--max-bytes', '--max-bytes', [CompletionResultType]::ParameterName, 'Fail if state and weights need more than SIZE, such as 800M or 2G')
            [CompletionResult]::new('--static', '--static', [CompletionResultType]::ParameterName, 'Make the state a static buffer, so that the program allocates nothing')
            [CompletionResult]::new('--tokenizer', '--tokenizer', [CompletionResultType]::ParameterName, 'Emit the tokenizer too, so that the program takes and prints text')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;quantize' {
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--type', '--type', [CompletionResultType]::ParameterName, 'The quantisation, such as Q4_K_M')
            [CompletionResult]::new('--dry-run', '--dry-run', [CompletionResultType]::ParameterName, 'Write nothing; print the type of each tensor and the sizes')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Replace OUT.gguf if it is there')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('--allow-requantize', '--allow-requantize', [CompletionResultType]::ParameterName, 'Quantise tensors that are quantised already, which loses more than from the original')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;convert' {
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--type', '--type', [CompletionResultType]::ParameterName, 'The type of matrices [default: as they are stored]')
            [CompletionResult]::new('--dry-run', '--dry-run', [CompletionResultType]::ParameterName, 'Write nothing; print the type of each tensor and the sizes')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Replace OUT.gguf if it is there')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;plan' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-c', '-c', [CompletionResultType]::ParameterName, 'Context length in tokens, or several to compare [default: the length the model was trained for]')
            [CompletionResult]::new('--ctx-size', '--ctx-size', [CompletionResultType]::ParameterName, 'Context length in tokens, or several to compare [default: the length the model was trained for]')
            [CompletionResult]::new('--compare', '--compare', [CompletionResultType]::ParameterName, 'Storage types of keys and values to compare')
            [CompletionResult]::new('--cache-type-k', '--cache-type-k', [CompletionResultType]::ParameterName, 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--cache-type-v', '--cache-type-v', [CompletionResultType]::ParameterName, 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h')
            [CompletionResult]::new('--kv-policy', '--kv-policy', [CompletionResultType]::ParameterName, 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them')
            [CompletionResult]::new('--kind', '--kind', [CompletionResultType]::ParameterName, 'Kind of cache: one sequence, cells shared by --parallel sequences, or a tree of candidates')
            [CompletionResult]::new('--parallel', '--parallel', [CompletionResultType]::ParameterName, 'Sequences that share a cache of cells')
            [CompletionResult]::new('-b', '-b', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('--batch-size', '--batch-size', [CompletionResultType]::ParameterName, 'Maximum number of tokens in one step of prompt processing')
            [CompletionResult]::new('-t', '-t', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--threads', '--threads', [CompletionResultType]::ParameterName, 'Number of threads, at most one per core [default: all cores]')
            [CompletionResult]::new('--device', '--device', [CompletionResultType]::ParameterName, 'The device to compute on')
            [CompletionResult]::new('--n-cpu-moe', '--n-cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of the first N layers in the host''s memory')
            [CompletionResult]::new('--model-draft', '--model-draft', [CompletionResultType]::ParameterName, 'Path, name or reference of a draft model, planned with the same options; mtp is the head that the model itself carries')
            [CompletionResult]::new('--md', '--md', [CompletionResultType]::ParameterName, 'Path, name or reference of a draft model, planned with the same options; mtp is the head that the model itself carries')
            [CompletionResult]::new('--state-budget', '--state-budget', [CompletionResultType]::ParameterName, 'Most memory that snapshots of recurrent layers'' states may take, such as 64M; a model of attention alone has none')
            [CompletionResult]::new('--state-type', '--state-type', [CompletionResultType]::ParameterName, 'Storage type of recurrent layers'' states: f32 or f16')
            [CompletionResult]::new('--expert-budget', '--expert-budget', [CompletionResultType]::ParameterName, 'Most memory for the experts of a mixture of experts, such as 2G [default: all, or as many as fit]')
            [CompletionResult]::new('--mem-limit', '--mem-limit', [CompletionResultType]::ParameterName, 'Fail if the plan needs more memory than SIZE, such as 800M or 2G')
            [CompletionResult]::new('--dim', '--dim', [CompletionResultType]::ParameterName, 'Dynamic size of the inputs, for a model whose graph is made for the shapes of each run''s inputs')
            [CompletionResult]::new('--svg', '--svg', [CompletionResultType]::ParameterName, 'Draw the plan as SVG')
            [CompletionResult]::new('--cpu-moe', '--cpu-moe', [CompletionResultType]::ParameterName, 'Keep the routed experts of all layers in the host''s memory, from which the GPU reads them; on the CPU they are there anyway')
            [CompletionResult]::new('--map', '--map', [CompletionResultType]::ParameterName, 'Print every buffer with its arena offset')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help (see more with ''--help'')')
            break
        }
        'kvark;show' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--template', '--template', [CompletionResultType]::ParameterName, 'Print the chat template and nothing else')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;inspect' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--dim', '--dim', [CompletionResultType]::ParameterName, 'Dynamic size of the inputs, for a model whose graph is made for the shapes of each run''s inputs')
            [CompletionResult]::new('--graph', '--graph', [CompletionResultType]::ParameterName, 'Print the optimised graph, one line per node')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;tokenize' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'The model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('-p', '-p', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('--prompt', '--prompt', [CompletionResultType]::ParameterName, 'The text; - for standard input')
            [CompletionResult]::new('-f', '-f', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--file', '--file', [CompletionResultType]::ParameterName, 'File with the text, without the line end after it; - for standard input')
            [CompletionResult]::new('--bos', '--bos', [CompletionResultType]::ParameterName, 'Add the model''s BOS token, if it has one')
            [CompletionResult]::new('--special', '--special', [CompletionResultType]::ParameterName, 'Parse special tokens in the text')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;detokenize' {
            [CompletionResult]::new('-m', '-m', [CompletionResultType]::ParameterName, 'Model, as a flag')
            [CompletionResult]::new('--model', '--model', [CompletionResultType]::ParameterName, 'Model, as a flag')
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--token-ids', '--token-ids', [CompletionResultType]::ParameterName, 'The token ids, such as 1,2,3')
            [CompletionResult]::new('--no-special', '--no-special', [CompletionResultType]::ParameterName, 'Omit control tokens such as BOS')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;pull' {
            [CompletionResult]::new('--hf-repo', '--hf-repo', [CompletionResultType]::ParameterName, 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one')
            [CompletionResult]::new('--force', '--force', [CompletionResultType]::ParameterName, 'Download again even if the file exists')
            [CompletionResult]::new('--verify', '--verify', [CompletionResultType]::ParameterName, 'Verify the checksum of the existing file')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;list' {
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;rm' {
            [CompletionResult]::new('--packed', '--packed', [CompletionResultType]::ParameterName, 'Delete the packed weights of all models; the next start packs them again')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;config' {
            [CompletionResult]::new('--path', '--path', [CompletionResultType]::ParameterName, 'Print the path of the file and nothing else')
            [CompletionResult]::new('--json', '--json', [CompletionResultType]::ParameterName, 'Print one JSON object')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;completions' {
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Write the script to a file of its usual name in DIR instead')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;man' {
            [CompletionResult]::new('--dir', '--dir', [CompletionResultType]::ParameterName, 'Write all pages to files in DIR instead')
            [CompletionResult]::new('-h', '-h', [CompletionResultType]::ParameterName, 'Print help')
            [CompletionResult]::new('--help', '--help', [CompletionResultType]::ParameterName, 'Print help')
            break
        }
        'kvark;help' {
            [CompletionResult]::new('run', 'run', [CompletionResultType]::ParameterValue, 'Complete a prompt')
            [CompletionResult]::new('chat', 'chat', [CompletionResultType]::ParameterValue, 'Talk to a model')
            [CompletionResult]::new('serve', 'serve', [CompletionResultType]::ParameterValue, 'Serve an OpenAI-compatible API, and a page to chat and to watch the cache')
            [CompletionResult]::new('ps', 'ps', [CompletionResultType]::ParameterValue, 'Show the models of a running kvark serve')
            [CompletionResult]::new('launch', 'launch', [CompletionResultType]::ParameterValue, 'Run a coding agent on the models of a running kvark serve')
            [CompletionResult]::new('prefix', 'prefix', [CompletionResultType]::ParameterValue, 'Compute a text once, for runs, chats and servers that begin with it')
            [CompletionResult]::new('score', 'score', [CompletionResultType]::ParameterValue, 'Score a text: the log-probability of every token given those before it')
            [CompletionResult]::new('tune-kv', 'tune-kv', [CompletionResultType]::ParameterValue, 'Choose how every layer stores its keys and values, by what it costs on a text')
            [CompletionResult]::new('embed', 'embed', [CompletionResultType]::ParameterValue, 'Turn texts into embeddings')
            [CompletionResult]::new('bench', 'bench', [CompletionResultType]::ParameterValue, 'Measure tokens per second, like llama-bench')
            [CompletionResult]::new('agents-bench', 'agents-bench', [CompletionResultType]::ParameterValue, 'Replay agents'' requests against servers, and count the tokens computed again')
            [CompletionResult]::new('exec', 'exec', [CompletionResultType]::ParameterValue, 'Run any model once on given or random tensors')
            [CompletionResult]::new('export', 'export', [CompletionResultType]::ParameterValue, 'Export a model to a .pt2 file with PyTorch')
            [CompletionResult]::new('emit-c', 'emit-c', [CompletionResultType]::ParameterValue, 'Write a model as a C program in which every address is fixed')
            [CompletionResult]::new('quantize', 'quantize', [CompletionResultType]::ParameterValue, 'Make a model smaller: write it as a GGUF file in another quantisation')
            [CompletionResult]::new('convert', 'convert', [CompletionResultType]::ParameterValue, 'Write a folder of Hugging Face as a GGUF file')
            [CompletionResult]::new('plan', 'plan', [CompletionResultType]::ParameterValue, 'Show the memory that a run needs')
            [CompletionResult]::new('show', 'show', [CompletionResultType]::ParameterValue, 'Show what a model is: size, context, template, licence, defaults')
            [CompletionResult]::new('inspect', 'inspect', [CompletionResultType]::ParameterValue, 'Show what is in a model file, a snapshot or a prefix file')
            [CompletionResult]::new('tokenize', 'tokenize', [CompletionResultType]::ParameterValue, 'Turn text into token ids')
            [CompletionResult]::new('detokenize', 'detokenize', [CompletionResultType]::ParameterValue, 'Turn token ids into text')
            [CompletionResult]::new('pull', 'pull', [CompletionResultType]::ParameterValue, 'Download a model: of the catalogue, of the Hugging Face hub, or from an address')
            [CompletionResult]::new('list', 'list', [CompletionResultType]::ParameterValue, 'List models: the catalogue, downloaded ones, Ollama''s')
            [CompletionResult]::new('rm', 'rm', [CompletionResultType]::ParameterValue, 'Delete a downloaded model, an unfinished download, or packed weights')
            [CompletionResult]::new('config', 'config', [CompletionResultType]::ParameterValue, 'Show the configuration and where each value comes from')
            [CompletionResult]::new('completions', 'completions', [CompletionResultType]::ParameterValue, 'Print a script that completes commands and flags in your shell')
            [CompletionResult]::new('man', 'man', [CompletionResultType]::ParameterValue, 'Print a manual page')
            [CompletionResult]::new('help', 'help', [CompletionResultType]::ParameterValue, 'Print this message or the help of the given subcommand(s)')
            break
        }
        'kvark;help;run' {
            break
        }
        'kvark;help;chat' {
            break
        }
        'kvark;help;serve' {
            break
        }
        'kvark;help;ps' {
            break
        }
        'kvark;help;launch' {
            break
        }
        'kvark;help;prefix' {
            break
        }
        'kvark;help;score' {
            break
        }
        'kvark;help;tune-kv' {
            break
        }
        'kvark;help;embed' {
            break
        }
        'kvark;help;bench' {
            break
        }
        'kvark;help;agents-bench' {
            break
        }
        'kvark;help;exec' {
            break
        }
        'kvark;help;export' {
            break
        }
        'kvark;help;emit-c' {
            break
        }
        'kvark;help;quantize' {
            break
        }
        'kvark;help;convert' {
            break
        }
        'kvark;help;plan' {
            break
        }
        'kvark;help;show' {
            break
        }
        'kvark;help;inspect' {
            break
        }
        'kvark;help;tokenize' {
            break
        }
        'kvark;help;detokenize' {
            break
        }
        'kvark;help;pull' {
            break
        }
        'kvark;help;list' {
            break
        }
        'kvark;help;rm' {
            break
        }
        'kvark;help;config' {
            break
        }
        'kvark;help;completions' {
            break
        }
        'kvark;help;man' {
            break
        }
        'kvark;help;help' {
            break
        }
    })

    $completions.Where{ $_.CompletionText -like "$wordToComplete*" } |
        Sort-Object -Property ListItemText
}
