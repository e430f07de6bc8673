# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_kvark_global_optspecs
    string join \n h/help V/version
end

function __fish_kvark_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_kvark_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_kvark_using_subcommand
    set -l cmd (__fish_kvark_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c kvark -n "__fish_kvark_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_needs_command" -s V -l version -d 'Print version'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "run" -d 'Complete a prompt'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "chat" -d 'Talk to a model'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "serve" -d 'Serve an OpenAI-compatible API, and a page to chat and to watch the cache'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "ps" -d 'Show the models of a running kvark serve'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "launch" -d 'Run a coding agent on the models of a running kvark serve'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "prefix" -d 'Compute a text once, for runs, chats and servers that begin with it'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "score" -d 'Score a text: the log-probability of every token given those before it'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "tune-kv" -d 'Choose how every layer stores its keys and values, by what it costs on a text'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "embed" -d 'Turn texts into embeddings'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "bench" -d 'Measure tokens per second, like llama-bench'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "agents-bench" -d 'Replay agents\' requests against servers, and count the tokens computed again'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "exec" -d 'Run any model once on given or random tensors'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "export" -d 'Export a model to a .pt2 file with PyTorch'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "emit-c" -d 'Write a model as a C program in which every address is fixed'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "quantize" -d 'Make a model smaller: write it as a GGUF file in another quantisation'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "convert" -d 'Write a folder of Hugging Face as a GGUF file'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "plan" -d 'Show the memory that a run needs'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "show" -d 'Show what a model is: size, context, template, licence, defaults'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "inspect" -d 'Show what is in a model file, a snapshot or a prefix file'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "tokenize" -d 'Turn text into token ids'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "detokenize" -d 'Turn token ids into text'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "pull" -d 'Download a model: of the catalogue, of the Hugging Face hub, or from an address'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "list" -d 'List models: the catalogue, downloaded ones, Ollama\'s'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "rm" -d 'Delete a downloaded model, an unfinished download, or packed weights'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "config" -d 'Show the configuration and where each value comes from'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "completions" -d 'Print a script that completes commands and flags in your shell'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "man" -d 'Print a manual page'
complete -c kvark -n "__fish_kvark_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvark -n "__fish_kvark_using_subcommand run" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -s p -l prompt -d 'The text; - for standard input' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -s f -l file -d 'File with the text, without the line end after it; - for standard input' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand run" -l token-ids -d 'The prompt as token ids, such as 1,2,3' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l system -d 'System message of --chat or --messages' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l messages -d 'Conversation to continue: a JSON list of {"role": ..., "content": ...}; - for standard input. A prompt is added to it as the user\'s message' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand run" -s n -l predict -d 'Maximum number of tokens to generate; -1 for no limit but the model\'s end of text or a full context' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l stop -d 'Stop generating at this string; may be given several times' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l parallel -d 'Generate K continuations in one batch, with seeds --seed, --seed + 1, ...' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l prompt-cache -d 'Restore the longest common prefix of the prompt from FILE and save the whole text to FILE for the next run; a conversation of kvark chat is refused' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand run" -l prefix -d 'Begin with a file of kvark prefix build, whose tokens come before the prompt: the processes that use it share its keys and values. With --chat, its text is the system message' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand run" -l logprobs -d 'With --json, the log-probability of every token and those of the K most likely ones' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l cache -d 'Kind of the cache: contiguous (one sequence), cells (sequences that share cells) or tree (one sequence and candidates) [default: contiguous, or cells for --parallel and --spec-type]' -r -f -a "contiguous\t''
cells\t''
tree\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l json-schema -d 'JSON schema that the output follows: the schema itself or a file; {} for any JSON' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l grammar -d 'File with a grammar that the output follows: GBNF as llama.cpp has it, or Lark if its name ends with .lark' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand run" -l regex -d 'Regular expression that the whole output matches' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l chat-template -d 'Chat template to use instead of the model\'s own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7, phi3, phi4, vicuna, zephyr, or a file with a Jinja template' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l reasoning -d 'Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template makes of it)' -r -f -a "keep\t''
drop\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l reasoning-budget -d 'Most tokens of reasoning in an answer, after which the model has to answer; -1 for no limit' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l keep -d 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l spec-type -d 'Source of candidate tokens, which the model verifies several at a time: ngram (repetitions of the prompt and the answer), draft (a smaller model, -md), eagle3 (a head on the model\'s features, -md), mtp (the head that the model itself carries, or a gemma4-assistant, -md), auto (what is there, where it pays) or none [default: none, or the kind of -md]' -r -f -a "ngram\t''
draft\t''
eagle3\t''
mtp\t''
auto\t''
none\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l model-draft -d 'Smaller model with the same vocabulary, Eagle3 head or gemma4-assistant that proposes tokens; -md too. A head beside the model, named NAME.eagle3.gguf, is found without it, and the default model has one. mtp is the head that the model itself carries. A head is a GGUF file, a safetensors file with its config.json, or their folder' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l spec-tree -d 'Most candidates of a round [default: 8]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l spec-depth -l spec-draft-n-max -d 'Most candidates that a round can accept: the depth of the tree [default: 8]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l spec-topk -d 'Most children of a candidate; 1 proposes a chain [default: 3]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l spec-trace -d 'Write a page that draws the tree of every round, with what was accepted' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand run" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand run" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l temp -d 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l top-k -d 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l top-p -d 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l min-p -d 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l top-n-sigma -d 'Sample from tokens whose logits are at most N standard deviations below the highest one; 0 or less for all [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l typical -l typical-p -d 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l xtc-probability -d 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l xtc-threshold -d 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l mirostat -d 'Mirostat: 2 removes tokens that are too surprising instead of all other samplers that remove tokens; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l mirostat-ent -d 'Mirostat: the surprise of tokens to reach, in bits [default: 5]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l mirostat-lr -d 'Mirostat: how fast the limit of the surprise follows [default: 0.1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l repeat-penalty -d 'Penalty on tokens among the last --repeat-last-n: divides positive and multiplies negative logits; 1 for none [default: that of genai_config.json, or 1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l frequency-penalty -d 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l presence-penalty -d 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l repeat-last-n -d 'Number of last tokens that the penalties consider; -1 for all [default: 64]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l dry-multiplier -d 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l dry-base -d 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l dry-allowed-length -d 'Length of a repetition from which DRY penalises it [default: 2]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l dry-penalty-last-n -d 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l dry-sequence-breaker -d 'Texts across which DRY follows no repetition; may be given several times; none for no text [default: "\\n" ":" "\\"" "*"]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l samplers -d 'Samplers in the order in which they run; those that are not named do not run [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -s l -l logit-bias -d 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -s s -l seed -d 'Seed of the random numbers; -1 draws one [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand run" -l chat -d 'Treat the prompt as a user\'s message and apply the model\'s chat template'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l ignore-eos -d 'Continue past the model\'s end of text'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l no-display-prompt -d 'Do not print the prompt'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand run" -s q -l quiet -d 'Print no progress and no statistics'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l special -d 'Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l context-shift -d 'When the context is full, drop the older half of the tokens after the first --keep and continue'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand run" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l system -d 'System message; replaces that of the conversation in --prompt-cache' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s p -l prompt -d 'The first message' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l prompt-cache -d 'Continue the conversation saved in FILE, if it exists, and save to FILE after every turn; a prompt of kvark run is refused' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l prefix -d 'Begin with a file of kvark prefix build --chat: its text is the system message, and the processes that use it share its keys and values' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s n -l predict -d 'Maximum number of tokens per answer; -1 for no limit but the model\'s end of turn or a full context' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l stop -d 'Stop answers at this string; may be given several times' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l json-schema -d 'JSON schema that the output follows: the schema itself or a file; {} for any JSON' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l grammar -d 'File with a grammar that the output follows: GBNF as llama.cpp has it, or Lark if its name ends with .lark' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l regex -d 'Regular expression that the whole output matches' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l chat-template -d 'Chat template to use instead of the model\'s own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7, phi3, phi4, vicuna, zephyr, or a file with a Jinja template' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l reasoning -d 'Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template makes of it)' -r -f -a "keep\t''
drop\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l reasoning-budget -d 'Most tokens of reasoning in an answer, after which the model has to answer; -1 for no limit' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l keep -d 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l spec-type -d 'Source of candidate tokens, which the model verifies several at a time: ngram (repetitions of the prompt and the answer), draft (a smaller model, -md), eagle3 (a head on the model\'s features, -md), mtp (the head that the model itself carries, or a gemma4-assistant, -md), auto (what is there, where it pays) or none [default: none, or the kind of -md]' -r -f -a "ngram\t''
draft\t''
eagle3\t''
mtp\t''
auto\t''
none\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l model-draft -d 'Smaller model with the same vocabulary, Eagle3 head or gemma4-assistant that proposes tokens; -md too. A head beside the model, named NAME.eagle3.gguf, is found without it, and the default model has one. mtp is the head that the model itself carries. A head is a GGUF file, a safetensors file with its config.json, or their folder' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l spec-tree -d 'Most candidates of a round [default: 8]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l spec-depth -l spec-draft-n-max -d 'Most candidates that a round can accept: the depth of the tree [default: 8]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l spec-topk -d 'Most children of a candidate; 1 proposes a chain [default: 3]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l spec-trace -d 'Write a page that draws the tree of every round, with what was accepted' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l temp -d 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l top-k -d 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l top-p -d 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l min-p -d 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l top-n-sigma -d 'Sample from tokens whose logits are at most N standard deviations below the highest one; 0 or less for all [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l typical -l typical-p -d 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l xtc-probability -d 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l xtc-threshold -d 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l mirostat -d 'Mirostat: 2 removes tokens that are too surprising instead of all other samplers that remove tokens; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l mirostat-ent -d 'Mirostat: the surprise of tokens to reach, in bits [default: 5]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l mirostat-lr -d 'Mirostat: how fast the limit of the surprise follows [default: 0.1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l repeat-penalty -d 'Penalty on tokens among the last --repeat-last-n: divides positive and multiplies negative logits; 1 for none [default: that of genai_config.json, or 1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l frequency-penalty -d 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l presence-penalty -d 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l repeat-last-n -d 'Number of last tokens that the penalties consider; -1 for all [default: 64]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l dry-multiplier -d 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l dry-base -d 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l dry-allowed-length -d 'Length of a repetition from which DRY penalises it [default: 2]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l dry-penalty-last-n -d 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l dry-sequence-breaker -d 'Texts across which DRY follows no repetition; may be given several times; none for no text [default: "\\n" ":" "\\"" "*"]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l samplers -d 'Samplers in the order in which they run; those that are not named do not run [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s l -l logit-bias -d 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s s -l seed -d 'Seed of the random numbers; -1 draws one [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s v -l verbose -d 'Print statistics after each answer'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s q -l quiet -d 'Print no banner, no progress and no notes on answers that --predict cut'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l special -d 'Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l context-shift -d 'When the context is full, drop the older half of the tokens after the first --keep and continue'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s m -l model -d 'A model, as a flag; can be repeated' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l model-draft -d 'Draft of the default model for requests with spec_type: a smaller model, an Eagle3 head, mtp for the head that the model itself carries, or none; -md too [default: the Eagle3 head that lies beside the model as NAME.eagle3.gguf]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l spec-type -d 'Speculation of requests that state no spec_type: auto, ngram, draft, eagle3, mtp or none [default: auto with --model-draft, else none]' -r -f -a "auto\t''
ngram\t''
draft\t''
eagle3\t''
mtp\t''
none\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l chat-template -l chat-template-file -d 'Chat template of all models instead of their own: a name (see kvark chat --help) or a file' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l chat-template-kwargs -d 'Variables of the chat template for all chats, such as \'{"enable_thinking": false}\'; a request\'s own count more' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s n -l predict -l n-predict -d 'Most tokens of any answer' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l host -d 'Address to listen on; 0.0.0.0 for all networks' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l port -d 'Port to listen on; 0 for any free one' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l parallel -l slots -l np -d 'Requests that run at once' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l queue -d 'Requests that wait for a slot; more are refused with 429' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l api-key -d 'Key that clients must send [default: KVARK_API_KEY, or none]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l api-key-file -d 'File with keys, one a line; each key sees its own conversations only' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l allow-host -d 'Host name by which clients may address the server, besides localhost; can be repeated' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l cors-origin -d 'Web origin whose pages may use the API from a browser; * for all' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l cache-disk -d 'Keep prefixes on disk, up to this size, in $KVARK_HOME/prefixes' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l conversations -d 'Folder in which conversations are kept, or none: then they are gone when the server ends [default: prefixes/conversations in $KVARK_HOME]' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l cache-ram -d 'Keep prefixes that leave the pool in this much memory, before they go to disk' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l cache-ram-types -d 'With --cache-ram: smaller types in which they are stored one after the other when that memory is full, such as q8,q4. What comes back from them is an approximation' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l volatile -d 'Lines of system messages that change in every request, as a regular expression: they go to the end of the last message, so that everything before stays computed. A message with "volatile": true does the same' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l volatile-place -d 'Where volatile text goes: last, or drop (the model does not see it)' -r -f -a "last\t''
drop\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l prefix -d 'System message, from a text file, that is computed when a model is loaded, or a file of kvark prefix build, which is mapped. Chats and completions that begin with it share its keys and values' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l keep -d 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l reasoning -d 'Reasoning of earlier answers in a chat: keep (their tokens stay as they were generated) or drop (what the chat template makes of it)' -r -f -a "keep\t''
drop\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l reasoning-budget -d 'Most tokens of reasoning in an answer, after which the model has to answer; -1 for no limit' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l timeout -d 'Longest time of one answer in seconds' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l grace -d 'How long running answers may go on after Ctrl-C, in seconds' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l max-body -d 'Largest size of a request' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l temp -d 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l top-k -d 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l top-p -d 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l min-p -d 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l top-n-sigma -d 'Sample from tokens whose logits are at most N standard deviations below the highest one; 0 or less for all [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l typical -l typical-p -d 'Locally typical sampling: sample from the tokens whose information is nearest to the entropy and whose probabilities sum to P; 1 for none [default: 1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l xtc-probability -d 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l xtc-threshold -d 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l mirostat -d 'Mirostat: 2 removes tokens that are too surprising instead of all other samplers that remove tokens; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l mirostat-ent -d 'Mirostat: the surprise of tokens to reach, in bits [default: 5]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l mirostat-lr -d 'Mirostat: how fast the limit of the surprise follows [default: 0.1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l repeat-penalty -d 'Penalty on tokens among the last --repeat-last-n: divides positive and multiplies negative logits; 1 for none [default: that of genai_config.json, or 1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l frequency-penalty -d 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l presence-penalty -d 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l repeat-last-n -d 'Number of last tokens that the penalties consider; -1 for all [default: 64]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l dry-multiplier -d 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l dry-base -d 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l dry-allowed-length -d 'Length of a repetition from which DRY penalises it [default: 2]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l dry-penalty-last-n -d 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l dry-sequence-breaker -d 'Texts across which DRY follows no repetition; may be given several times; none for no text [default: "\\n" ":" "\\"" "*"]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l samplers -d 'Samplers in the order in which they run; those that are not named do not run [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s l -l logit-bias -d 'Numbers added to the logits of tokens, before all samplers; -inf bans a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s s -l seed -d 'Seed of the random numbers; -1 draws one [default: -1]' -r
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l context-shift -d 'When the context is full, drop the older half of the tokens after the first --keep and continue'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l lenient -d 'Ignore unknown parameters with a warning instead of refusing the request'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l log-json -d 'Write logs as JSON'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand ps" -l host -d 'Address of the server' -r
complete -c kvark -n "__fish_kvark_using_subcommand ps" -l port -d 'Port of the server' -r
complete -c kvark -n "__fish_kvark_using_subcommand ps" -l api-key -d 'Key of the server [default: KVARK_API_KEY, or none]' -r
complete -c kvark -n "__fish_kvark_using_subcommand ps" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand ps" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand launch" -s m -l model -d 'Name of a model of the server [default: its first one]' -r
complete -c kvark -n "__fish_kvark_using_subcommand launch" -l host -d 'Address of the server' -r
complete -c kvark -n "__fish_kvark_using_subcommand launch" -l port -d 'Port of the server' -r
complete -c kvark -n "__fish_kvark_using_subcommand launch" -l api-key -d 'Key of the server [default: KVARK_API_KEY, or none]' -r
complete -c kvark -n "__fish_kvark_using_subcommand launch" -l print -d 'Print what to set and to run instead of running it'
complete -c kvark -n "__fish_kvark_using_subcommand launch" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s p -l prompt -d 'The text; - for standard input' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s f -l file -d 'File with the text, without the line end after it; - for standard input' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s o -l output -d 'The file to write' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l on -d 'Prefix file that the text continues; the new file has the tokens of both' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l chat-template -d 'Chat template to use instead of the model\'s own: a name or a file, as for kvark run' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l chat -d 'Make the text the system message of chats, with the model\'s chat template'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l special -d 'Parse control tokens such as <|im_end|> in the text; without this flag they are plain text'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s q -l quiet -d 'Print no progress and no statistics'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand prefix" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand score" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -s p -l prompt -d 'The text; - for standard input' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -s f -l file -d 'File with the text, without the line end after it; - for standard input' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand score" -l token-ids -d 'The sequence as token ids, such as 1,2,3' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l stride -l ppl-stride -d 'Score a text longer than the context in windows that begin N tokens apart; N is below the context\'s size' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l segment -d 'Print the nll of every N predicted tokens instead of every token' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand score" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand score" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand score" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand score" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand score" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand score" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand score" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand score" -l compare-precision -d 'Score the text in every precision and print the mean difference of the log-probabilities, and how many of the most likely tokens differ'
complete -c kvark -n "__fish_kvark_using_subcommand score" -l compare-cache -d 'Score the text with keys and values in f16 and as the options store them, and print the mean difference of the log-probabilities, and how many of the most likely tokens differ'
complete -c kvark -n "__fish_kvark_using_subcommand score" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand score" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand score" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand score" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand score" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand score" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s p -l prompt -d 'The text; - for standard input' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s f -l file -d 'File with the text, without the line end after it; - for standard input' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l budget -d 'The most memory for keys and values of a full context: a size such as 2GiB, or a share of what they take now such as 50%' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l types -d 'The types to choose from, beside those of --cache-type-k and --cache-type-v' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l tokens -d 'Use the first N tokens of the text' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s o -l output -d 'Write the policy to FILE [default: standard output]' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l svg -d 'Draw the measured points to FILE' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand embed" -s f -l file -d 'File with one text per line; - for standard input' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l pooling -d 'How hidden states are pooled into one embedding [default: as the model states]' -r -f -a "mean\t'Mean over all tokens'
cls\t'First token, the [CLS] of BERT'
last\t'Last token'"
complete -c kvark -n "__fish_kvark_using_subcommand embed" -s t -l threads -d 'Number of threads, at most one per core [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l normalize -d 'Scale embeddings to unit length (the default)'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l no-normalize -d 'Do not scale embeddings'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l truncate -d 'Truncate texts longer than the model\'s context instead of rejecting them'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s m -l model -d 'A model, as a flag; can be repeated' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s p -l n-prompt -d 'Prompt lengths to measure; 0 for none' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s n -l n-gen -d 'Numbers of generated tokens to measure; 0 for none' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l n-prompt-gen -d 'A prompt and the tokens generated after it, measured together; -pg too, can be repeated' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s d -l n-depth -d 'Number of tokens already in the context when a test starts' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s r -l repetitions -d 'Repetitions of each test' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l profile -d 'Show the time of a step by op; with FILE, also draw it as SVG' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l roofline -d 'Draw the ops of a step against the machine\'s measured bandwidth and product rates as SVG' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s o -l output -d 'Form of the results' -r -f -a "text\t'Lines for people'
md\t'A Markdown table'
csv\t'Comma-separated values'
json\t'One JSON object'"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l compare -d 'Print the ratio of every result to that of an earlier kvark bench --json' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l cache -d 'Measure cache operations and branches that share a prefix instead'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l restore -d 'Compare restoring a conversation of 2,000 tokens from a file with computing it again'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l json -d 'Print one JSON object, as -o json'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l url -d 'A server that runs already, over plain HTTP; can be repeated. kvark\'s own is then measured only if a MODEL is named' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l api -d 'API of these servers: openai or ollama [default: found out]' -r -f -a "openai\t''
ollama\t''"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l served-model -d 'Model that these servers are asked for [default: the one that each lists first]' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l api-key -d 'Key of these servers' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l trace -d 'Replay this trace instead of the built-in one' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l requests -d 'Replay its first N requests only' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l parallel -l np -d 'Conversations whose whole context fits in the memory of kvark\'s own server, and requests that it runs at once' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l cache-ram -d 'Keep prefixes of kvark\'s own server that leave its pool in this much memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l cache-disk -d 'Keep prefixes of kvark\'s own server on disk, up to this size, in a temporary folder' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -s c -l ctx-size -d 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -s t -l threads -d 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16 (half the memory, rounded after every token)' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l state-interval -d 'Keep a snapshot of recurrent layers\' states after every N tokens of a prompt, where conversations can be continued differently; 0 keeps them only where prompts begin and end' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G: those used most are kept, the others read from the file of packed weights [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l mem-limit -d 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l run-mode -d 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode' -r -f -a "none\t''
piecewise\t''
full\t''
full_decode_only\t''
full_and_piecewise\t''
all\t''"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l precision -d 'How exactly quantised weights are multiplied with activations: high has fourteen bits, balanced eight, and fifteen where they stand out. fast is balanced; on matrix tiles it is high, but steps of more than 32 tokens use bf16, so a token\'s bits depend on the size of its step. Both compute prompts faster; kvark score --compare-precision shows what that costs' -r -f -a "high\t''
balanced\t''
fast\t''"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l print-trace -d 'Print the built-in trace, as a beginning of another one'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l preallocate -d 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l method -d 'Method to run [default: the model\'s only method, or forward]' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l input -d 'Input tensor' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l dim -d 'Dynamic size of generated inputs [default: that of the given inputs, or the smallest that the model accepts]' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l step -d 'Token ids to feed to a decoder with static buffers; --step again continues. Several sequences are 1,2;7 and have the same number of parts in every step' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l seed -d 'Seed of generated inputs; -1 takes one from the clock' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l trace -d 'Print every intermediate result, or save them in FOLDER' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l output -d 'Save the outputs in FOLDER' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l repeat -d 'Run N more times and report the times' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -s t -l threads -d 'Number of threads, at most one per core [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l executor -d 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node' -r -f -a "compiled\t''
interpreted\t''"
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l passes -d 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]' -r
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l random -d 'Generate random tensors for inputs that are not given'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l profile -d 'Report the time of every node in these runs'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l placement -d 'Show which device runs which nodes: the CPU runs what a GPU has no kernels for'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l interpret -d 'Same as --executor interpreted'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l no-packed-file -d 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand export" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand export" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand export" -s o -l output -d 'The file to write' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand export" -l max-step -d 'Maximum number of tokens in one step [default: 2048]' -r
complete -c kvark -n "__fish_kvark_using_subcommand export" -l python -d 'Python interpreter that has PyTorch' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand export" -l features -d 'Add hidden states as a second output, for Eagle3 drafts'
complete -c kvark -n "__fish_kvark_using_subcommand export" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -s o -l output -d 'Folder to write; one that an earlier emit-c wrote is replaced' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -s c -l ctx-size -d 'Context length in tokens [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -l cache-type-k -d 'Storage type of cached keys: f32, f16 or f8_e4m3' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -l cache-type-v -d 'Storage type of cached values: f32, f16 or f8_e4m3' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -s t -l threads -d 'Number of threads of the program' -r
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -l max-bytes -d 'Fail if state and weights need more than SIZE, such as 800M or 2G' -r
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -l static -d 'Make the state a static buffer, so that the program allocates nothing'
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -l tokenizer -d 'Emit the tokenizer too, so that the program takes and prints text'
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand quantize" -s t -l threads -d 'Number of threads, at most one per core [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand quantize" -l type -d 'The quantisation, such as Q4_K_M' -r
complete -c kvark -n "__fish_kvark_using_subcommand quantize" -l dry-run -d 'Write nothing; print the type of each tensor and the sizes'
complete -c kvark -n "__fish_kvark_using_subcommand quantize" -l force -d 'Replace OUT.gguf if it is there'
complete -c kvark -n "__fish_kvark_using_subcommand quantize" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand quantize" -l allow-requantize -d 'Quantise tensors that are quantised already, which loses more than from the original'
complete -c kvark -n "__fish_kvark_using_subcommand quantize" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand convert" -s t -l threads -d 'Number of threads, at most one per core [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand convert" -l type -d 'The type of matrices [default: as they are stored]' -r
complete -c kvark -n "__fish_kvark_using_subcommand convert" -l dry-run -d 'Write nothing; print the type of each tensor and the sizes'
complete -c kvark -n "__fish_kvark_using_subcommand convert" -l force -d 'Replace OUT.gguf if it is there'
complete -c kvark -n "__fish_kvark_using_subcommand convert" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand convert" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand plan" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -s c -l ctx-size -d 'Context length in tokens, or several to compare [default: the length the model was trained for]' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l compare -d 'Storage types of keys and values to compare' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l cache-type-k -d 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l cache-type-v -d 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4, q4g64 or q4h' -r -f -a "f32\t''
f16\t''
bf16\t''
f8_e4m3\t''
q8\t''
q8g64\t''
q4\t''
q4g64\t''
q4h\t''"
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l kv-policy -d 'How single layers store their keys and values and how far they look back, and what is for the whole cache: rules such as "layers 0-3 f16; others k=q8 v=q4; window 4096 for 5,11" or "stream window 4096 sinks 4", or a TOML file of them' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l kind -d 'Kind of cache: one sequence, cells shared by --parallel sequences, or a tree of candidates' -r -f -a "sequence\t''
cells\t''
tree\t''"
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l parallel -d 'Sequences that share a cache of cells' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -s b -l batch-size -d 'Maximum number of tokens in one step of prompt processing' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -s t -l threads -d 'Number of threads, at most one per core [default: all cores]' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l device -d 'The device to compute on' -r -f -a "cpu\t'The CPU, with its best instruction set (KVARK_ISA forces another)'
cuda\t'The first NVIDIA GPU (compute capability 8.0 or later), with captured CUDA graphs'"
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l n-cpu-moe -d 'Keep the routed experts of the first N layers in the host\'s memory' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l model-draft -l md -d 'Path, name or reference of a draft model, planned with the same options; mtp is the head that the model itself carries' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l state-budget -d 'Most memory that snapshots of recurrent layers\' states may take, such as 64M; a model of attention alone has none' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l state-type -d 'Storage type of recurrent layers\' states: f32 or f16' -r -f -a "f32\t''
f16\t''"
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l expert-budget -d 'Most memory for the experts of a mixture of experts, such as 2G [default: all, or as many as fit]' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l mem-limit -d 'Fail if the plan needs more memory than SIZE, such as 800M or 2G' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l dim -d 'Dynamic size of the inputs, for a model whose graph is made for the shapes of each run\'s inputs' -r
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l svg -d 'Draw the plan as SVG' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l cpu-moe -d 'Keep the routed experts of all layers in the host\'s memory, from which the GPU reads them; on the CPU they are there anyway'
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l map -d 'Print every buffer with its arena offset'
complete -c kvark -n "__fish_kvark_using_subcommand plan" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand plan" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kvark -n "__fish_kvark_using_subcommand show" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand show" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand show" -l template -d 'Print the chat template and nothing else'
complete -c kvark -n "__fish_kvark_using_subcommand show" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand show" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand inspect" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand inspect" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand inspect" -l dim -d 'Dynamic size of the inputs, for a model whose graph is made for the shapes of each run\'s inputs' -r
complete -c kvark -n "__fish_kvark_using_subcommand inspect" -l graph -d 'Print the optimised graph, one line per node'
complete -c kvark -n "__fish_kvark_using_subcommand inspect" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand inspect" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -s m -l model -d 'The model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -s p -l prompt -d 'The text; - for standard input' -r
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -s f -l file -d 'File with the text, without the line end after it; - for standard input' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -l bos -d 'Add the model\'s BOS token, if it has one'
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -l special -d 'Parse special tokens in the text'
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand detokenize" -s m -l model -d 'Model, as a flag' -r
complete -c kvark -n "__fish_kvark_using_subcommand detokenize" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand detokenize" -l token-ids -d 'The token ids, such as 1,2,3' -r
complete -c kvark -n "__fish_kvark_using_subcommand detokenize" -l no-special -d 'Omit control tokens such as BOS'
complete -c kvark -n "__fish_kvark_using_subcommand detokenize" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand detokenize" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand pull" -l hf-repo -d 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one' -r
complete -c kvark -n "__fish_kvark_using_subcommand pull" -l force -d 'Download again even if the file exists'
complete -c kvark -n "__fish_kvark_using_subcommand pull" -l verify -d 'Verify the checksum of the existing file'
complete -c kvark -n "__fish_kvark_using_subcommand pull" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand list" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand list" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand rm" -l packed -d 'Delete the packed weights of all models; the next start packs them again'
complete -c kvark -n "__fish_kvark_using_subcommand rm" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand config" -l path -d 'Print the path of the file and nothing else'
complete -c kvark -n "__fish_kvark_using_subcommand config" -l json -d 'Print one JSON object'
complete -c kvark -n "__fish_kvark_using_subcommand config" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand completions" -l dir -d 'Write the script to a file of its usual name in DIR instead' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand completions" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand man" -l dir -d 'Write all pages to files in DIR instead' -r -F
complete -c kvark -n "__fish_kvark_using_subcommand man" -s h -l help -d 'Print help'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "run" -d 'Complete a prompt'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "chat" -d 'Talk to a model'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "serve" -d 'Serve an OpenAI-compatible API, and a page to chat and to watch the cache'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "ps" -d 'Show the models of a running kvark serve'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "launch" -d 'Run a coding agent on the models of a running kvark serve'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "prefix" -d 'Compute a text once, for runs, chats and servers that begin with it'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "score" -d 'Score a text: the log-probability of every token given those before it'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "tune-kv" -d 'Choose how every layer stores its keys and values, by what it costs on a text'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "embed" -d 'Turn texts into embeddings'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "bench" -d 'Measure tokens per second, like llama-bench'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "agents-bench" -d 'Replay agents\' requests against servers, and count the tokens computed again'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "exec" -d 'Run any model once on given or random tensors'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "export" -d 'Export a model to a .pt2 file with PyTorch'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "emit-c" -d 'Write a model as a C program in which every address is fixed'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "quantize" -d 'Make a model smaller: write it as a GGUF file in another quantisation'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "convert" -d 'Write a folder of Hugging Face as a GGUF file'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "plan" -d 'Show the memory that a run needs'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "show" -d 'Show what a model is: size, context, template, licence, defaults'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "inspect" -d 'Show what is in a model file, a snapshot or a prefix file'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "tokenize" -d 'Turn text into token ids'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "detokenize" -d 'Turn token ids into text'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "pull" -d 'Download a model: of the catalogue, of the Hugging Face hub, or from an address'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "list" -d 'List models: the catalogue, downloaded ones, Ollama\'s'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "rm" -d 'Delete a downloaded model, an unfinished download, or packed weights'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "config" -d 'Show the configuration and where each value comes from'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "completions" -d 'Print a script that completes commands and flags in your shell'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "man" -d 'Print a manual page'
complete -c kvark -n "__fish_kvark_using_subcommand help; and not __fish_seen_subcommand_from run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c kvark -n "__fish_kvark_using_subcommand run" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand chat" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand serve" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand score" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand tune-kv" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand embed" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand bench" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand agents-bench" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand exec" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand export" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand emit-c" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand plan" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand show" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand inspect" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand tokenize" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
complete -c kvark -n "__fish_kvark_using_subcommand detokenize" -F -a "smollm2 gemma3-270m qwen2.5-coder" -d 'Model'
