import { Argument, Command } from 'commander'
import { bashCompletion } from '../completion/bash.ts'
import { fishCompletion } from '../completion/fish.ts'
import { zshCompletion } from '../completion/zsh.ts'
import type { Io } from '../io.ts'
import { shapeOf } from '../shape.ts'

const SCRIPTS = { bash: bashCompletion, zsh: zshCompletion, fish: fishCompletion }

export function command(io: Io, program: () => Promise<Command>): Command {
  return new Command('completion')
    .description(
      'Prints the completion script for a shell. For bash: source <(tallygate completion bash). The packages install it.',
    )
    .addArgument(new Argument('<shell>', 'shell').choices(Object.keys(SCRIPTS)))
    .action(async (shell: keyof typeof SCRIPTS) => {
      io.stdout.write(SCRIPTS[shell](shapeOf(await program())))
    })
}
