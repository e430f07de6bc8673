_kvark() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="kvark"
                ;;
            kvark,agents-bench)
                cmd="kvark__subcmd__agents__subcmd__bench"
                ;;
            kvark,bench)
                cmd="kvark__subcmd__bench"
                ;;
            kvark,chat)
                cmd="kvark__subcmd__chat"
                ;;
            kvark,completions)
                cmd="kvark__subcmd__completions"
                ;;
            kvark,config)
                cmd="kvark__subcmd__config"
                ;;
            kvark,convert)
                cmd="kvark__subcmd__convert"
                ;;
            kvark,detokenize)
                cmd="kvark__subcmd__detokenize"
                ;;
            kvark,embed)
                cmd="kvark__subcmd__embed"
                ;;
            kvark,emit-c)
                cmd="kvark__subcmd__emit__subcmd__c"
                ;;
            kvark,exec)
                cmd="kvark__subcmd__exec"
                ;;
            kvark,export)
                cmd="kvark__subcmd__export"
                ;;
            kvark,help)
                cmd="kvark__subcmd__help"
                ;;
            kvark,inspect)
                cmd="kvark__subcmd__inspect"
                ;;
            kvark,launch)
                cmd="kvark__subcmd__launch"
                ;;
            kvark,list)
                cmd="kvark__subcmd__list"
                ;;
            kvark,man)
                cmd="kvark__subcmd__man"
                ;;
            kvark,plan)
                cmd="kvark__subcmd__plan"
                ;;
            kvark,prefix)
                cmd="kvark__subcmd__prefix"
                ;;
            kvark,ps)
                cmd="kvark__subcmd__ps"
                ;;
            kvark,pull)
                cmd="kvark__subcmd__pull"
                ;;
            kvark,quantize)
                cmd="kvark__subcmd__quantize"
                ;;
            kvark,rm)
                cmd="kvark__subcmd__rm"
                ;;
            kvark,run)
                cmd="kvark__subcmd__run"
                ;;
            kvark,score)
                cmd="kvark__subcmd__score"
                ;;
            kvark,serve)
                cmd="kvark__subcmd__serve"
                ;;
            kvark,show)
                cmd="kvark__subcmd__show"
                ;;
            kvark,tokenize)
                cmd="kvark__subcmd__tokenize"
                ;;
            kvark,tune-kv)
                cmd="kvark__subcmd__tune__subcmd__kv"
                ;;
            kvark__subcmd__help,agents-bench)
                cmd="kvark__subcmd__help__subcmd__agents__subcmd__bench"
                ;;
            kvark__subcmd__help,bench)
                cmd="kvark__subcmd__help__subcmd__bench"
                ;;
            kvark__subcmd__help,chat)
                cmd="kvark__subcmd__help__subcmd__chat"
                ;;
            kvark__subcmd__help,completions)
                cmd="kvark__subcmd__help__subcmd__completions"
                ;;
            kvark__subcmd__help,config)
                cmd="kvark__subcmd__help__subcmd__config"
                ;;
            kvark__subcmd__help,convert)
                cmd="kvark__subcmd__help__subcmd__convert"
                ;;
            kvark__subcmd__help,detokenize)
                cmd="kvark__subcmd__help__subcmd__detokenize"
                ;;
            kvark__subcmd__help,embed)
                cmd="kvark__subcmd__help__subcmd__embed"
                ;;
            kvark__subcmd__help,emit-c)
                cmd="kvark__subcmd__help__subcmd__emit__subcmd__c"
                ;;
            kvark__subcmd__help,exec)
                cmd="kvark__subcmd__help__subcmd__exec"
                ;;
            kvark__subcmd__help,export)
                cmd="kvark__subcmd__help__subcmd__export"
                ;;
            kvark__subcmd__help,help)
                cmd="kvark__subcmd__help__subcmd__help"
                ;;
            kvark__subcmd__help,inspect)
                cmd="kvark__subcmd__help__subcmd__inspect"
                ;;
            kvark__subcmd__help,launch)
                cmd="kvark__subcmd__help__subcmd__launch"
                ;;
            kvark__subcmd__help,list)
                cmd="kvark__subcmd__help__subcmd__list"
                ;;
            kvark__subcmd__help,man)
                cmd="kvark__subcmd__help__subcmd__man"
                ;;
            kvark__subcmd__help,plan)
                cmd="kvark__subcmd__help__subcmd__plan"
                ;;
            kvark__subcmd__help,prefix)
                cmd="kvark__subcmd__help__subcmd__prefix"
                ;;
            kvark__subcmd__help,ps)
                cmd="kvark__subcmd__help__subcmd__ps"
                ;;
            kvark__subcmd__help,pull)
                cmd="kvark__subcmd__help__subcmd__pull"
                ;;
            kvark__subcmd__help,quantize)
                cmd="kvark__subcmd__help__subcmd__quantize"
                ;;
            kvark__subcmd__help,rm)
                cmd="kvark__subcmd__help__subcmd__rm"
                ;;
            kvark__subcmd__help,run)
                cmd="kvark__subcmd__help__subcmd__run"
                ;;
            kvark__subcmd__help,score)
                cmd="kvark__subcmd__help__subcmd__score"
                ;;
            kvark__subcmd__help,serve)
                cmd="kvark__subcmd__help__subcmd__serve"
                ;;
            kvark__subcmd__help,show)
                cmd="kvark__subcmd__help__subcmd__show"
                ;;
            kvark__subcmd__help,tokenize)
                cmd="kvark__subcmd__help__subcmd__tokenize"
                ;;
            kvark__subcmd__help,tune-kv)
                cmd="kvark__subcmd__help__subcmd__tune__subcmd__kv"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        kvark)
            opts="-h -V --help --version run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__agents__subcmd__bench)
            opts="-m -c -t -b -h --model --hf-repo --url --api --served-model --api-key --trace --requests --print-trace --np --parallel --cache-ram --cache-disk --json --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --url)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api)
                    COMPREPLY=($(compgen -W "openai ollama" -- "${cur}"))
                    return 0
                    ;;
                --served-model)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-key)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --trace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --requests)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --parallel)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --np)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-ram)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-disk)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__bench)
            opts="-m -p -n -d -r -o -c -t -b -h --model --hf-repo --n-prompt --n-gen --n-prompt-gen --n-depth --repetitions --cache --restore --profile --roofline --output --json --compare --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --n-prompt)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --n-gen)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --n-prompt-gen)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --n-depth)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -d)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repetitions)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -r)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --profile)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --roofline)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --output)
                    COMPREPLY=($(compgen -W "text md csv json" -- "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -W "text md csv json" -- "${cur}"))
                    return 0
                    ;;
                --compare)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__chat)
            opts="-m -p -n -v -q -c -t -b -l -s -h --model --hf-repo --system --prompt --prompt-cache --prefix --predict --stop --verbose --quiet --json-schema --grammar --regex --chat-template --reasoning --reasoning-budget --special --context-shift --keep --spec-type --model-draft --spec-tree --spec-draft-n-max --spec-depth --spec-topk --spec-trace --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --temp --top-k --top-p --min-p --top-n-sigma --typical-p --typical --xtc-probability --xtc-threshold --mirostat --mirostat-ent --mirostat-lr --repeat-penalty --frequency-penalty --presence-penalty --repeat-last-n --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --samplers --logit-bias --seed --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --system)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt-cache)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prefix)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --predict)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --stop)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --json-schema)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --grammar)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --regex)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --chat-template)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reasoning)
                    COMPREPLY=($(compgen -W "keep drop" -- "${cur}"))
                    return 0
                    ;;
                --reasoning-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --keep)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-type)
                    COMPREPLY=($(compgen -W "ngram draft eagle3 mtp auto none" -- "${cur}"))
                    return 0
                    ;;
                --model-draft)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --spec-tree)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-depth)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-draft-n-max)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-topk)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-trace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --temp)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-k)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --min-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-n-sigma)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --typical)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --typical-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --xtc-probability)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --xtc-threshold)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat-ent)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat-lr)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repeat-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --frequency-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --presence-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repeat-last-n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-multiplier)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-base)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-allowed-length)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-penalty-last-n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-sequence-breaker)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --samplers)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --logit-bias)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -l)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -s)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__completions)
            opts="-h --dir --help bash elvish fish powershell zsh"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__config)
            opts="-h --path --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__convert)
            opts="-t -h --dry-run --force --threads --json --type --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --type)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__detokenize)
            opts="-m -h --model --hf-repo --token-ids --no-special --json --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --token-ids)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__embed)
            opts="-m -f -t -h --model --hf-repo --file --pooling --normalize --no-normalize --truncate --threads --mem-limit --executor --interpret --passes --no-packed-file --device --json --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -f)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --pooling)
                    COMPREPLY=($(compgen -W "mean cls last" -- "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__emit__subcmd__c)
            opts="-m -o -c -b -t -h --model --hf-repo --output --ctx-size --batch-size --cache-type-k --cache-type-v --threads --static --max-bytes --tokenizer --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-bytes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__exec)
            opts="-m -t -h --model --hf-repo --method --input --random --dim --step --seed --trace --output --repeat --profile --threads --device --placement --executor --interpret --passes --no-packed-file --json --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --method)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --input)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dim)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --step)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --trace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repeat)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__export)
            opts="-m -o -h --model --hf-repo --output --features --max-step --python --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-step)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --python)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help)
            opts="run chat serve ps launch prefix score tune-kv embed bench agents-bench exec export emit-c quantize convert plan show inspect tokenize detokenize pull list rm config completions man help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__agents__subcmd__bench)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__bench)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__chat)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__completions)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__config)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__convert)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__detokenize)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__embed)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__emit__subcmd__c)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__exec)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__export)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__help)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__inspect)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__launch)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__list)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__man)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__plan)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__prefix)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__ps)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__pull)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__quantize)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__rm)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__run)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__score)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__serve)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__show)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__tokenize)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__help__subcmd__tune__subcmd__kv)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__inspect)
            opts="-m -h --model --hf-repo --graph --dim --json --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dim)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__launch)
            opts="-m -h --model --host --port --api-key --print --help claude codex opencode aider ollama openai"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --host)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --port)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-key)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__list)
            opts="-h --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__man)
            opts="-h --dir --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__plan)
            opts="-m -c -b -t -h --model --hf-repo --ctx-size --compare --cache-type-k --cache-type-v --kv-policy --kind --parallel --batch-size --threads --device --cpu-moe --n-cpu-moe --md --model-draft --state-budget --state-type --expert-budget --mem-limit --map --dim --svg --json --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --compare)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --kind)
                    COMPREPLY=($(compgen -W "sequence cells tree" -- "${cur}"))
                    return 0
                    ;;
                --parallel)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --model-draft)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --md)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dim)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --svg)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__prefix)
            opts="-m -p -f -o -q -c -t -b -h --model --hf-repo --prompt --file --output --on --chat --chat-template --special --quiet --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --help build"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -f)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --on)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --chat-template)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__ps)
            opts="-h --host --port --api-key --json --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --host)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --port)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-key)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__pull)
            opts="-h --hf-repo --force --verify --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__quantize)
            opts="-t -h --dry-run --force --threads --json --type --allow-requantize --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --type)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__rm)
            opts="-h --packed --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__run)
            opts="-m -p -f -n -q -c -t -b -l -s -h --model --hf-repo --prompt --file --token-ids --chat --system --messages --predict --stop --ignore-eos --no-display-prompt --parallel --prompt-cache --prefix --logprobs --cache --json --quiet --json-schema --grammar --regex --chat-template --reasoning --reasoning-budget --special --context-shift --keep --spec-type --model-draft --spec-tree --spec-draft-n-max --spec-depth --spec-topk --spec-trace --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --temp --top-k --top-p --min-p --top-n-sigma --typical-p --typical --xtc-probability --xtc-threshold --mirostat --mirostat-ent --mirostat-lr --repeat-penalty --frequency-penalty --presence-penalty --repeat-last-n --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --samplers --logit-bias --seed --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -f)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --token-ids)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --system)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --messages)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --predict)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --stop)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --parallel)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt-cache)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prefix)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --logprobs)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache)
                    COMPREPLY=($(compgen -W "contiguous cells tree" -- "${cur}"))
                    return 0
                    ;;
                --json-schema)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --grammar)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --regex)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --chat-template)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reasoning)
                    COMPREPLY=($(compgen -W "keep drop" -- "${cur}"))
                    return 0
                    ;;
                --reasoning-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --keep)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-type)
                    COMPREPLY=($(compgen -W "ngram draft eagle3 mtp auto none" -- "${cur}"))
                    return 0
                    ;;
                --model-draft)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --spec-tree)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-depth)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-draft-n-max)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-topk)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --spec-trace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --temp)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-k)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --min-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-n-sigma)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --typical)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --typical-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --xtc-probability)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --xtc-threshold)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat-ent)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat-lr)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repeat-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --frequency-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --presence-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repeat-last-n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-multiplier)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-base)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-allowed-length)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-penalty-last-n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-sequence-breaker)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --samplers)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --logit-bias)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -l)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -s)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__score)
            opts="-m -p -f -c -t -b -h --model --hf-repo --prompt --file --token-ids --ppl-stride --stride --segment --compare-precision --compare-cache --json --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -f)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --token-ids)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --stride)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ppl-stride)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --segment)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__serve)
            opts="-m -n -c -t -b -l -s -h --model --hf-repo --model-draft --spec-type --chat-template-file --chat-template --chat-template-kwargs --n-predict --predict --host --port --slots --np --parallel --queue --api-key --api-key-file --allow-host --cors-origin --cache-disk --conversations --cache-ram --cache-ram-types --volatile --volatile-place --prefix --context-shift --keep --reasoning --reasoning-budget --timeout --grace --lenient --max-body --log-json --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --temp --top-k --top-p --min-p --top-n-sigma --typical-p --typical --xtc-probability --xtc-threshold --mirostat --mirostat-ent --mirostat-lr --repeat-penalty --frequency-penalty --presence-penalty --repeat-last-n --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --samplers --logit-bias --seed --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --model-draft)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --spec-type)
                    COMPREPLY=($(compgen -W "auto ngram draft eagle3 mtp none" -- "${cur}"))
                    return 0
                    ;;
                --chat-template)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --chat-template-file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --chat-template-kwargs)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --predict)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --n-predict)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --host)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --port)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --parallel)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --slots)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --np)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --queue)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-key)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --api-key-file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --allow-host)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cors-origin)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-disk)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --conversations)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-ram)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-ram-types)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --volatile)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --volatile-place)
                    COMPREPLY=($(compgen -W "last drop" -- "${cur}"))
                    return 0
                    ;;
                --prefix)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --keep)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --reasoning)
                    COMPREPLY=($(compgen -W "keep drop" -- "${cur}"))
                    return 0
                    ;;
                --reasoning-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --timeout)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --grace)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --max-body)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --temp)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-k)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --min-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --top-n-sigma)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --typical)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --typical-p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --xtc-probability)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --xtc-threshold)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat-ent)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mirostat-lr)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repeat-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --frequency-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --presence-penalty)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --repeat-last-n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-multiplier)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-base)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-allowed-length)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-penalty-last-n)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dry-sequence-breaker)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --samplers)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --logit-bias)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -l)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --seed)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -s)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__show)
            opts="-m -h --model --hf-repo --template --json --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__tokenize)
            opts="-m -p -f -h --model --hf-repo --prompt --file --bos --special --json --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -f)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        kvark__subcmd__tune__subcmd__kv)
            opts="-m -p -f -o -c -t -b -h --model --hf-repo --prompt --file --budget --types --tokens --output --svg --json --ctx-size --threads --batch-size --cache-type-k --cache-type-v --kv-policy --preallocate --state-budget --state-type --state-interval --expert-budget --mem-limit --run-mode --precision --device --cpu-moe --n-cpu-moe --executor --interpret --passes --no-packed-file --help"
            if [[ ${cur} != -* && ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                return 0
            fi
            if [[ ${cur} == -* ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --model)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                -m)
                    COMPREPLY=($(compgen -f -- "${cur}") $(compgen -W "smollm2 gemma3-270m qwen2.5-coder" -- "${cur}"))
                    return 0
                    ;;
                --hf-repo)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --prompt)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -p)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --file)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -f)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --types)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --tokens)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --output)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -o)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --svg)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --ctx-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -c)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --threads)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -t)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --batch-size)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                -b)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --cache-type-k)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --cache-type-v)
                    COMPREPLY=($(compgen -W "f32 f16 bf16 f8_e4m3 q8 q8g64 q4 q4g64 q4h" -- "${cur}"))
                    return 0
                    ;;
                --kv-policy)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --state-type)
                    COMPREPLY=($(compgen -W "f32 f16" -- "${cur}"))
                    return 0
                    ;;
                --state-interval)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --expert-budget)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --mem-limit)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --run-mode)
                    COMPREPLY=($(compgen -W "none piecewise full full_decode_only full_and_piecewise all" -- "${cur}"))
                    return 0
                    ;;
                --precision)
                    COMPREPLY=($(compgen -W "high balanced fast" -- "${cur}"))
                    return 0
                    ;;
                --device)
                    COMPREPLY=($(compgen -W "cpu cuda" -- "${cur}"))
                    return 0
                    ;;
                --n-cpu-moe)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --executor)
                    COMPREPLY=($(compgen -W "compiled interpreted" -- "${cur}"))
                    return 0
                    ;;
                --passes)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _kvark -o nosort -o bashdefault -o default kvark
else
    complete -F _kvark -o bashdefault -o default kvark
fi
