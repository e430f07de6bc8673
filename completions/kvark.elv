
use builtin;
use str;

set edit:completion:arg-completer[kvark] = {|@words|
    fn spaces {|n|
        builtin:repeat $n ' ' | str:join ''
    }
    fn cand {|text desc|
        edit:complex-candidate $text &display=$text' '(spaces (- 14 (wcswidth $text)))$desc
    }
    var command = 'kvark'
    for word $words[1..-1] {
        if (str:has-prefix $word '-') {
            break
        }
        set command = $command';'$word
    }
    var completions = [
        &'kvark'= {
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
            cand -V 'Print version'
            cand --version 'Print version'
            cand run 'Complete a prompt'
            cand chat 'Talk to a model'
            cand serve 'Serve an OpenAI-compatible API, and a page to chat and to watch the cache'
            cand ps 'Show the models of a running kvark serve'
            cand score 'Score a text: the log-probability of every token given those before it'
            cand embed 'Turn texts into embeddings'
            cand bench 'Measure tokens per second, like llama-bench'
            cand exec 'Run any model once on given or random tensors'
            cand export 'Export a model to a .pt2 file with PyTorch'
            cand emit-c 'Write a model as a C program in which every address is fixed'
            cand plan 'Show the memory that a run needs'
            cand show 'Show what a model is: size, context, template, licence, defaults'
            cand inspect 'Show a model file''s metadata, tensors, ops and methods'
            cand tokenize 'Turn text into token ids'
            cand detokenize 'Turn token ids into text'
            cand pull 'Download a model: of the catalogue, of the Hugging Face hub, or from an address'
            cand list 'List models: the catalogue, downloaded ones, Ollama''s'
            cand rm 'Delete a downloaded model, an unfinished download, or packed weights'
            cand config 'Show the configuration and where each value comes from'
            cand completions 'Print a script that completes commands and flags in your shell'
            cand man 'Print a manual page'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'kvark;run'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -p 'The text; - for standard input'
            cand --prompt 'The text; - for standard input'
            cand -f 'File with the text, without the line end after it; - for standard input'
            cand --file 'File with the text, without the line end after it; - for standard input'
            cand --token-ids 'The prompt as token ids, such as 1,2,3'
            cand --system 'System message of --chat or --messages'
            cand --messages 'Conversation to continue: a JSON list of {"role": ..., "content": ...}; - for standard input. A prompt is added to it as the user''s message'
            cand -n 'Maximum number of tokens to generate; -1 for no limit but the model''s end of text or a full context'
            cand --predict 'Maximum number of tokens to generate; -1 for no limit but the model''s end of text or a full context'
            cand --stop 'Stop generating at this string; may be given several times'
            cand --parallel 'Generate K continuations in one batch, with seeds --seed, --seed + 1, ...'
            cand --prompt-cache 'Restore the longest common prefix of the prompt from FILE and save the whole text to FILE for the next run; a conversation of kvark chat is refused'
            cand --json-schema 'JSON schema that the output follows: the schema itself or a file; {} for any JSON'
            cand --grammar 'File with a grammar that the output follows: GBNF as llama.cpp has it, or Lark if its name ends with .lark'
            cand --regex 'Regular expression that the whole output matches'
            cand --chat-template 'Chat template to use instead of the model''s own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7, phi3, phi4, vicuna, zephyr, or a file with a Jinja template'
            cand --keep 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]'
            cand --spec-type 'Source of candidate tokens, which the model verifies several at a time: ngram (repetitions of the prompt and the answer), draft (a smaller model, -md), eagle3 (a head on the model''s features, -md), auto (what is there, where it pays) or none [default: none, or the kind of -md]'
            cand --model-draft 'Smaller model with the same vocabulary, or Eagle3 head, that proposes tokens; -md too. A head beside the model, named NAME.eagle3.gguf, is found without it, and the default model has one. A head is a GGUF file, a safetensors file with its config.json, or their folder'
            cand --spec-tree 'Most candidates of a round [default: 8]'
            cand --spec-depth 'Most candidates that a round can accept: the depth of the tree [default: 8]'
            cand --spec-draft-n-max 'Most candidates that a round can accept: the depth of the tree [default: 8]'
            cand --spec-topk 'Most children of a candidate; 1 proposes a chain [default: 3]'
            cand --spec-trace 'Write a page that draws the tree of every round, with what was accepted'
            cand -c 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand --ctx-size 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand -t 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand --threads 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand -b 'Maximum number of tokens in one step of prompt processing'
            cand --batch-size 'Maximum number of tokens in one step of prompt processing'
            cand --cache-type-k 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --cache-type-v 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --mem-limit 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]'
            cand --run-mode 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode'
            cand --device 'The device to compute on'
            cand --executor 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node'
            cand --passes 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]'
            cand --temp 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]'
            cand --top-k 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]'
            cand --top-p 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]'
            cand --min-p 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]'
            cand --typical 'Locally typical sampling with probability P; 1 for none [default: 1]'
            cand --typical-p 'Locally typical sampling with probability P; 1 for none [default: 1]'
            cand --xtc-probability 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]'
            cand --xtc-threshold 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]'
            cand --repeat-penalty 'Penalty on tokens among the last --repeat-last-n; 1 for none [default: that of genai_config.json, or 1]'
            cand --frequency-penalty 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]'
            cand --presence-penalty 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]'
            cand --repeat-last-n 'Number of last tokens that the penalties consider; -1 for all [default: 64]'
            cand --dry-multiplier 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]'
            cand --dry-base 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]'
            cand --dry-allowed-length 'Length of a repetition from which DRY penalises it [default: 2]'
            cand --dry-penalty-last-n 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]'
            cand --dry-sequence-breaker 'Text across which DRY follows no repetition; may be given several times; none for no text [default: \n : " *]'
            cand -l 'Add BIAS to the logit of a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times'
            cand --logit-bias 'Add BIAS to the logit of a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times'
            cand -s 'Seed of the sampler; -1 takes one from the clock and prints it [default: -1]'
            cand --seed 'Seed of the sampler; -1 takes one from the clock and prints it [default: -1]'
            cand --chat 'Treat the prompt as a user''s message and apply the model''s chat template'
            cand --ignore-eos 'Continue past the model''s end of text'
            cand --no-display-prompt 'Do not print the prompt'
            cand --json 'Print one JSON object'
            cand --special 'Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text'
            cand --context-shift 'When the context is full, drop the older half of the tokens after the first --keep and continue'
            cand --preallocate 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
            cand --interpret 'Same as --executor interpreted'
            cand --no-packed-file 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;chat'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand --system 'System message; replaces that of the conversation in --prompt-cache'
            cand -p 'The first message'
            cand --prompt 'The first message'
            cand --prompt-cache 'Continue the conversation saved in FILE, if it exists, and save to FILE at the end'
            cand -n 'Maximum number of tokens per answer; -1 for no limit but the model''s end of turn or a full context'
            cand --predict 'Maximum number of tokens per answer; -1 for no limit but the model''s end of turn or a full context'
            cand --stop 'Stop answers at this string; may be given several times'
            cand --chat-template 'Chat template to use instead of the model''s own: chatml, gemma, llama3, mistral-v1, mistral-v3, mistral-v7, phi3, phi4, vicuna, zephyr, or a file with a Jinja template'
            cand --keep 'Number of first tokens that --context-shift keeps [default: the system message, or the first token]'
            cand --spec-type 'Source of candidate tokens, which the model verifies several at a time: ngram (repetitions of the prompt and the answer), draft (a smaller model, -md), eagle3 (a head on the model''s features, -md), auto (what is there, where it pays) or none [default: none, or the kind of -md]'
            cand --model-draft 'Smaller model with the same vocabulary, or Eagle3 head, that proposes tokens; -md too. A head beside the model, named NAME.eagle3.gguf, is found without it, and the default model has one. A head is a GGUF file, a safetensors file with its config.json, or their folder'
            cand --spec-tree 'Most candidates of a round [default: 8]'
            cand --spec-depth 'Most candidates that a round can accept: the depth of the tree [default: 8]'
            cand --spec-draft-n-max 'Most candidates that a round can accept: the depth of the tree [default: 8]'
            cand --spec-topk 'Most children of a candidate; 1 proposes a chain [default: 3]'
            cand --spec-trace 'Write a page that draws the tree of every round, with what was accepted'
            cand -c 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand --ctx-size 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand -t 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand --threads 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand -b 'Maximum number of tokens in one step of prompt processing'
            cand --batch-size 'Maximum number of tokens in one step of prompt processing'
            cand --cache-type-k 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --cache-type-v 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --mem-limit 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]'
            cand --run-mode 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode'
            cand --device 'The device to compute on'
            cand --executor 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node'
            cand --passes 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]'
            cand --temp 'Temperature; 0 always takes the most likely token [default: that of genai_config.json, or 0.8]'
            cand --top-k 'Sample from the K most likely tokens; 0 or -1 for all [default: that of genai_config.json, or 40]'
            cand --top-p 'Sample from the most likely tokens whose probabilities sum to P [default: that of genai_config.json, or 0.95]'
            cand --min-p 'Sample from tokens at least P times as likely as the most likely one [default: 0.05]'
            cand --typical 'Locally typical sampling with probability P; 1 for none [default: 1]'
            cand --typical-p 'Locally typical sampling with probability P; 1 for none [default: 1]'
            cand --xtc-probability 'Probability of removing the most likely tokens (XTC); 0 for never [default: 0]'
            cand --xtc-threshold 'XTC removes all tokens of at least this probability but the least likely of them; above 0.5 none [default: 0.1]'
            cand --repeat-penalty 'Penalty on tokens among the last --repeat-last-n; 1 for none [default: that of genai_config.json, or 1]'
            cand --frequency-penalty 'Penalty for each occurrence of a token among the last --repeat-last-n; 0 for none [default: 0]'
            cand --presence-penalty 'Penalty on tokens that occur among the last --repeat-last-n; 0 for none [default: 0]'
            cand --repeat-last-n 'Number of last tokens that the penalties consider; -1 for all [default: 64]'
            cand --dry-multiplier 'Penalty on tokens that would extend a repetition (DRY); 0 for none [default: 0]'
            cand --dry-base 'Factor of the DRY penalty for each further token of the repetition [default: 1.75]'
            cand --dry-allowed-length 'Length of a repetition from which DRY penalises it [default: 2]'
            cand --dry-penalty-last-n 'Number of last tokens that DRY searches for repetitions; 0 for none, -1 for all [default: -1]'
            cand --dry-sequence-breaker 'Text across which DRY follows no repetition; may be given several times; none for no text [default: \n : " *]'
            cand -l 'Add BIAS to the logit of a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times'
            cand --logit-bias 'Add BIAS to the logit of a token, as in 15043+1, 15043-1.5 or 15043:-inf; may be given several times'
            cand -s 'Seed of the sampler; -1 takes one from the clock and prints it [default: -1]'
            cand --seed 'Seed of the sampler; -1 takes one from the clock and prints it [default: -1]'
            cand -v 'Print statistics after each answer'
            cand --verbose 'Print statistics after each answer'
            cand --special 'Parse control tokens such as <|im_end|> in the given text; without this flag they are plain text'
            cand --context-shift 'When the context is full, drop the older half of the tokens after the first --keep and continue'
            cand --preallocate 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
            cand --interpret 'Same as --executor interpreted'
            cand --no-packed-file 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;serve'= {
            cand -m 'A model, as a flag; can be repeated'
            cand --model 'A model, as a flag; can be repeated'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand --model-draft 'Draft of the default model for requests with spec_type: a smaller model or an Eagle3 head; -md too'
            cand --host 'Address to listen on; 0.0.0.0 for all networks'
            cand --port 'Port to listen on; 0 for any free one'
            cand --parallel 'Requests that run at once'
            cand --slots 'Requests that run at once'
            cand --np 'Requests that run at once'
            cand --queue 'Requests that wait for a slot; more are refused with 429'
            cand --api-key 'Key that clients must send [default: KVARK_API_KEY, or none]'
            cand --api-key-file 'File with the key'
            cand --cors-origin 'Web origin whose pages may use the API from a browser; * for all'
            cand --cache-disk 'Keep prefixes on disk, up to this size, in $KVARK_HOME/prefixes'
            cand --timeout 'Longest time of one answer in seconds'
            cand --grace 'How long running answers may go on after Ctrl-C, in seconds'
            cand --max-body 'Largest size of a request'
            cand -c 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand --ctx-size 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand -t 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand --threads 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand -b 'Maximum number of tokens in one step of prompt processing'
            cand --batch-size 'Maximum number of tokens in one step of prompt processing'
            cand --cache-type-k 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --cache-type-v 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --mem-limit 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]'
            cand --run-mode 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode'
            cand --device 'The device to compute on'
            cand --executor 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node'
            cand --passes 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]'
            cand --lenient 'Ignore unknown parameters with a warning instead of refusing the request'
            cand --log-json 'Write logs as JSON'
            cand --preallocate 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
            cand --interpret 'Same as --executor interpreted'
            cand --no-packed-file 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;ps'= {
            cand --host 'Address of the server'
            cand --port 'Port of the server'
            cand --api-key 'Key of the server [default: KVARK_API_KEY, or none]'
            cand --json 'Print one JSON object'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;score'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -p 'The text; - for standard input'
            cand --prompt 'The text; - for standard input'
            cand -f 'File with the text, without the line end after it; - for standard input'
            cand --file 'File with the text, without the line end after it; - for standard input'
            cand --token-ids 'The sequence as token ids, such as 1,2,3'
            cand --stride 'Score a text longer than the context in windows that begin N tokens apart; N is below the context''s size'
            cand --ppl-stride 'Score a text longer than the context in windows that begin N tokens apart; N is below the context''s size'
            cand -c 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand --ctx-size 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand -t 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand --threads 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand -b 'Maximum number of tokens in one step of prompt processing'
            cand --batch-size 'Maximum number of tokens in one step of prompt processing'
            cand --cache-type-k 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --cache-type-v 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --mem-limit 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]'
            cand --run-mode 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode'
            cand --device 'The device to compute on'
            cand --executor 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node'
            cand --passes 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]'
            cand --json 'Print one JSON object'
            cand --preallocate 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
            cand --interpret 'Same as --executor interpreted'
            cand --no-packed-file 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;embed'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -f 'File with one text per line; - for standard input'
            cand --file 'File with one text per line; - for standard input'
            cand --pooling 'How hidden states are pooled into one embedding [default: as the model states]'
            cand -t 'Number of threads, at most one per core [default: all cores]'
            cand --threads 'Number of threads, at most one per core [default: all cores]'
            cand --mem-limit 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]'
            cand --executor 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node'
            cand --passes 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]'
            cand --device 'The device to compute on'
            cand --normalize 'Scale embeddings to unit length (the default)'
            cand --no-normalize 'Do not scale embeddings'
            cand --truncate 'Truncate texts longer than the model''s context instead of rejecting them'
            cand --interpret 'Same as --executor interpreted'
            cand --no-packed-file 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
            cand --json 'Print one JSON object'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;bench'= {
            cand -m 'A model, as a flag; can be repeated'
            cand --model 'A model, as a flag; can be repeated'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -p 'Prompt lengths to measure; 0 for none'
            cand --n-prompt 'Prompt lengths to measure; 0 for none'
            cand -n 'Numbers of generated tokens to measure; 0 for none'
            cand --n-gen 'Numbers of generated tokens to measure; 0 for none'
            cand --n-prompt-gen 'A prompt and the tokens generated after it, measured together; -pg too, can be repeated'
            cand -d 'Number of tokens already in the context when a test starts'
            cand --n-depth 'Number of tokens already in the context when a test starts'
            cand -r 'Repetitions of each test'
            cand --repetitions 'Repetitions of each test'
            cand --profile 'Show the time of a step by op; with FILE, also draw it as SVG'
            cand --roofline 'Draw the ops of a step against the machine''s measured bandwidth and product rates as SVG'
            cand -o 'Form of the results'
            cand --output 'Form of the results'
            cand --compare 'Print the ratio of every result to that of an earlier kvark bench --json'
            cand -c 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand --ctx-size 'Context length in tokens, such as 4096 or 4k [default: the length the model was trained for]'
            cand -t 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand --threads 'Number of threads, at most one per core; bench also takes several, such as 1,2 [default: all cores]'
            cand -b 'Maximum number of tokens in one step of prompt processing'
            cand --batch-size 'Maximum number of tokens in one step of prompt processing'
            cand --cache-type-k 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --cache-type-v 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --mem-limit 'Refuse to run if more memory than SIZE is needed, such as 800M or 2G [default: the free memory]'
            cand --run-mode 'Which steps are recorded and replayed: none, piecewise, full, full_decode_only or full_and_piecewise (bench also takes all) [default: full]. Results do not depend on the mode'
            cand --device 'The device to compute on'
            cand --executor 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node'
            cand --passes 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]'
            cand --cache 'Measure cache operations and branches that share a prefix instead'
            cand --restore 'Compare restoring a conversation of 2,000 tokens from a file with computing it again'
            cand --json 'Print one JSON object, as -o json'
            cand --preallocate 'Allocate all keys and values before the first token, as one region, instead of growing with the context'
            cand --interpret 'Same as --executor interpreted'
            cand --no-packed-file 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;exec'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand --method 'Method to run [default: the model''s only method, or forward]'
            cand --input 'Input tensor'
            cand --dim 'Dynamic size of generated inputs [default: that of the given inputs, or the smallest that the model accepts]'
            cand --seed 'Seed of generated inputs; -1 takes one from the clock'
            cand --trace 'Print every intermediate result, or save them in FOLDER'
            cand --output 'Save the outputs in FOLDER'
            cand --repeat 'Run N more times and report the times'
            cand -t 'Number of threads, at most one per core [default: all cores]'
            cand --threads 'Number of threads, at most one per core [default: all cores]'
            cand --device 'The device to compute on'
            cand --executor 'compiled records a tape of kernel calls and replays it; interpreted runs the graph node by node'
            cand --passes 'Graph passes to run: all, none, a list (fold,dead_code) or all except some (-fuse_dag) [default: KVARK_PASSES]'
            cand --random 'Generate random tensors for inputs that are not given'
            cand --profile 'Report the time of every node in these runs'
            cand --interpret 'Same as --executor interpreted'
            cand --no-packed-file 'Do not read or write packed weights in $KVARK_HOME/packed; pack them on this start'
            cand --json 'Print one JSON object'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;export'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -o 'The file to write'
            cand --output 'The file to write'
            cand --max-step 'Maximum number of tokens in one step [default: 2048]'
            cand --python 'Python interpreter that has PyTorch'
            cand --features 'Add hidden states as a second output, for Eagle3 drafts'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;emit-c'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -o 'Folder to write; one that an earlier emit-c wrote is replaced'
            cand --output 'Folder to write; one that an earlier emit-c wrote is replaced'
            cand -c 'Context length in tokens [default: the length the model was trained for]'
            cand --ctx-size 'Context length in tokens [default: the length the model was trained for]'
            cand -b 'Maximum number of tokens in one step of prompt processing'
            cand --batch-size 'Maximum number of tokens in one step of prompt processing'
            cand --cache-type-k 'Storage type of cached keys: f32, f16 or f8_e4m3'
            cand --cache-type-v 'Storage type of cached values: f32, f16 or f8_e4m3'
            cand -t 'Number of threads of the program'
            cand --threads 'Number of threads of the program'
            cand --max-bytes 'Fail if state and weights need more than SIZE, such as 800M or 2G'
            cand --static 'Make the state a static buffer, so that the program allocates nothing'
            cand --tokenizer 'Emit the tokenizer too, so that the program takes and prints text'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;plan'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -c 'Context length in tokens, or several to compare [default: the length the model was trained for]'
            cand --ctx-size 'Context length in tokens, or several to compare [default: the length the model was trained for]'
            cand --compare 'Storage types of keys and values to compare'
            cand --cache-type-k 'Storage type of cached keys: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --cache-type-v 'Storage type of cached values: f32, f16, bf16, f8_e4m3, q8, q8g64, q4 or q4g64'
            cand --kind 'Kind of cache: one sequence, cells shared by --parallel sequences, or a tree of candidates'
            cand --parallel 'Sequences that share a cache of cells'
            cand -b 'Maximum number of tokens in one step of prompt processing'
            cand --batch-size 'Maximum number of tokens in one step of prompt processing'
            cand -t 'Number of threads, at most one per core [default: all cores]'
            cand --threads 'Number of threads, at most one per core [default: all cores]'
            cand --device 'The device to compute on'
            cand --model-draft 'Path, name or reference of a draft model, planned with the same options'
            cand --md 'Path, name or reference of a draft model, planned with the same options'
            cand --mem-limit 'Fail if the plan needs more memory than SIZE, such as 800M or 2G'
            cand --svg 'Draw the plan as SVG'
            cand --png 'Draw the plan as PNG'
            cand --map 'Print every buffer with its arena offset'
            cand --json 'Print one JSON object'
            cand -h 'Print help (see more with ''--help'')'
            cand --help 'Print help (see more with ''--help'')'
        }
        &'kvark;show'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand --template 'Print the chat template and nothing else'
            cand --json 'Print one JSON object'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;inspect'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand --graph 'Print the optimised graph, one line per node'
            cand --json 'Print one JSON object'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;tokenize'= {
            cand -m 'The model, as a flag'
            cand --model 'The model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand -p 'The text; - for standard input'
            cand --prompt 'The text; - for standard input'
            cand -f 'File with the text, without the line end after it; - for standard input'
            cand --file 'File with the text, without the line end after it; - for standard input'
            cand --bos 'Add the model''s BOS token, if it has one'
            cand --special 'Parse special tokens in the text'
            cand --json 'Print one JSON object'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;detokenize'= {
            cand -m 'Model, as a flag'
            cand --model 'Model, as a flag'
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand --token-ids 'The token ids, such as 1,2,3'
            cand --no-special 'Omit control tokens such as BOS'
            cand --json 'Print one JSON object'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;pull'= {
            cand --hf-repo 'Model of the Hugging Face hub, as -hf too; downloaded on first use, Q4_K_M if there is one'
            cand --force 'Download again even if the file exists'
            cand --verify 'Verify the checksum of the existing file'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;list'= {
            cand --json 'Print one JSON object'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;rm'= {
            cand --packed 'Delete the packed weights of all models; the next start packs them again'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;config'= {
            cand --path 'Print the path of the file and nothing else'
            cand --json 'Print one JSON object'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;completions'= {
            cand --dir 'Write the script to a file of its usual name in DIR instead'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;man'= {
            cand --dir 'Write all pages to files in DIR instead'
            cand -h 'Print help'
            cand --help 'Print help'
        }
        &'kvark;help'= {
            cand run 'Complete a prompt'
            cand chat 'Talk to a model'
            cand serve 'Serve an OpenAI-compatible API, and a page to chat and to watch the cache'
            cand ps 'Show the models of a running kvark serve'
            cand score 'Score a text: the log-probability of every token given those before it'
            cand embed 'Turn texts into embeddings'
            cand bench 'Measure tokens per second, like llama-bench'
            cand exec 'Run any model once on given or random tensors'
            cand export 'Export a model to a .pt2 file with PyTorch'
            cand emit-c 'Write a model as a C program in which every address is fixed'
            cand plan 'Show the memory that a run needs'
            cand show 'Show what a model is: size, context, template, licence, defaults'
            cand inspect 'Show a model file''s metadata, tensors, ops and methods'
            cand tokenize 'Turn text into token ids'
            cand detokenize 'Turn token ids into text'
            cand pull 'Download a model: of the catalogue, of the Hugging Face hub, or from an address'
            cand list 'List models: the catalogue, downloaded ones, Ollama''s'
            cand rm 'Delete a downloaded model, an unfinished download, or packed weights'
            cand config 'Show the configuration and where each value comes from'
            cand completions 'Print a script that completes commands and flags in your shell'
            cand man 'Print a manual page'
            cand help 'Print this message or the help of the given subcommand(s)'
        }
        &'kvark;help;run'= {
        }
        &'kvark;help;chat'= {
        }
        &'kvark;help;serve'= {
        }
        &'kvark;help;ps'= {
        }
        &'kvark;help;score'= {
        }
        &'kvark;help;embed'= {
        }
        &'kvark;help;bench'= {
        }
        &'kvark;help;exec'= {
        }
        &'kvark;help;export'= {
        }
        &'kvark;help;emit-c'= {
        }
        &'kvark;help;plan'= {
        }
        &'kvark;help;show'= {
        }
        &'kvark;help;inspect'= {
        }
        &'kvark;help;tokenize'= {
        }
        &'kvark;help;detokenize'= {
        }
        &'kvark;help;pull'= {
        }
        &'kvark;help;list'= {
        }
        &'kvark;help;rm'= {
        }
        &'kvark;help;config'= {
        }
        &'kvark;help;completions'= {
        }
        &'kvark;help;man'= {
        }
        &'kvark;help;help'= {
        }
    ]
    $completions[$command]
}
