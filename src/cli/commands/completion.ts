/** `tallygate completion`: the script by which a shell completes the commands. */
import { Argument, Command } from 'commander'
import { bashCompletion } from '../completion/bash.ts'
import { fishCompletion } from '../completion/fish.ts'
import { zshCompletion } from '../completion/zsh.ts'
import type { Io } from '../io.ts'
import { shapeOf } from '../shape.ts'

const SCRIPTS = { bash: bashCompletion, zsh: zshCompletion, fish: fishCompletion }

/** @param program the whole tree, loaded only when a script is made */
export function command(io: Io, program: () => Promise<Command>): Command {
  return new Command('completion')
    .description(
      'Prints the script by which a shell completes the commands. For bash: source <(tallygate completion bash). A package ' +
        'installs it.',
    )
    .addArgument(new Argument('<shell>', 'which shell').choices(Object.keys(SCRIPTS)))
    .action(async (shell: keyof typeof SCRIPTS) => {
      io.stdout.write(SCRIPTS[shell](shapeOf(await program())))
    })
}
