# What zsh offers for each line that is given, one completion after the other in an interactive shell of its own.
# usage: zsh -f zsh-offers.zsh FOLDER LINE...   FOLDER has the completion functions.
# Each list is printed as the terminal shows it, followed by a line that is "=".
zmodload zsh/zpty
zpty -b inner zsh -f -i
settings=(
  "PS1=; unset zle_bracketed_paste; unsetopt prompt_cr prompt_sp; stty cols 120 rows 1000; LISTMAX=10000"
  "fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -u -D; bindkey '^I' list-choices"
  "zle-line-init() { print -r -- '<<'ready'>>' }; zle -N zle-line-init"
)
zpty -w inner "${(j:; :)settings}"
# Typed before the line editor is ready, a line would go through the terminal's own.
await() {
  local chunk
  REPLY=
  while zpty -r inner chunk $'*\n'; do
    REPLY+=$chunk
    [[ $chunk == *$1* ]] && return
  done
  exit 1
}
for line in "${@[2,-1]}"; do
  await '<<ready>>'
  zpty -w -n inner "$line"$'\t'$'\C-u'"print -r -- '<<'end'>>'"$'\n'
  await '<<end>>'
  print -r -- "$REPLY"
  print -r -- '='
done
zpty -d inner
