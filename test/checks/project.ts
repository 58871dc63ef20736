// A small project in a temporary folder that passes every check of this repository: the real rules, the real check
// script, the real tools, and a few files in the real layout. Tests add one defect and see which check finds it.
import { spawn } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'

const repository = join(import.meta.dirname, '..', '..')
const copied = [
  '.dependency-cruiser.mjs',
  '.prettierignore',
  '.prettierrc.json',
  '.textlintrc.json',
  'oxlint.config.ts',
  'prose-terms.yml',
  'knip.json',
  'scripts/arrows.ts',
  'scripts/check.ts',
  'scripts/lint-rules.ts',
  'scripts/or-usage.ts',
  'scripts/run.ts',
  'tsconfig.json',
]

const clean: Record<string, string> = {
  'README.md': `# Sample\n\nThe device keeps its entries until the cloud has them.\n`,
  'bin/tallygate.js': `import '../src/cli/main.ts'\n`,
  'src/cli/main.ts': `import { agent } from '../agent/compose.ts'\n\nconsole.log(agent(Date.now()))\n`,
  'src/core/double.ts': `export interface Half {\n  half: bigint\n}\n\nexport const double = ({ half }: Half) => half * 2n\n`,
  'src/agent/access/answer.ts':
    `import { double, type Half } from '../../core/double.ts'\n\n` +
    `export const answer = (half: Half) => \`answer \${double(half)}\`\n`,
  'src/agent/platform/store.ts': `import { tmpdir } from 'node:os'\n\nexport const place = (now: number) => \`\${tmpdir()} at \${now}\`\n`,
  'src/agent/compose.ts':
    `import { place } from './platform/store.ts'\nimport { answer } from './access/answer.ts'\n\n` +
    `export const agent = (now: number) => answer({ half: 21n }) + place(now)\n`,
}

export interface Project {
  /** Adds or replaces files, by their path in the project. */
  write: (files: Record<string, string>) => void
  /** Adds these packages to the dependencies in package.json. */
  declare: (...packages: string[]) => void
  check: (...names: string[]) => Promise<{ exitCode: number | null; output: string }>
  /** Gives dependency-cruiser a TypeScript that it cannot use, as an upgrade of the compiler would. */
  breakCompilerForArrows: () => void
  delete: () => void
}

export function project(): Project {
  const root = mkdtempSync(join(tmpdir(), 'tallygate-checks-'))
  const write = (files: Record<string, string>): void => {
    for (const [path, content] of Object.entries(files)) {
      mkdirSync(dirname(join(root, path)), { recursive: true })
      writeFileSync(join(root, path), content)
    }
  }
  write(clean)
  for (const path of copied) write({ [path]: readFileSync(join(repository, path), 'utf8') })
  // The scripts themselves import zod.
  const declare = (...packages: string[]): void => write({ 'package.json': manifest(['zod', ...packages]) })
  declare()
  symlinkSync(join(repository, 'node_modules'), join(root, 'node_modules'))

  return {
    write,
    declare,
    delete: () => rmSync(root, { recursive: true, force: true }),
    check: async (...names) => {
      const child = spawn(process.execPath, ['scripts/check.ts', ...names], {
        cwd: root,
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      const ended = new Promise<number | null>((resolve) => child.once('close', resolve))
      const [out, err, exitCode] = await Promise.all([text(child.stdout), text(child.stderr), ended])
      return { exitCode, output: out + err }
    },
    breakCompilerForArrows: () => {
      rmSync(join(root, 'node_modules'))
      const installed = (name: string) => join(repository, 'node_modules', name)
      const own = (name: string) => join(root, 'node_modules', name)
      // Node finds a package's imports beside its real folder, so what dependency-cruiser imports stands beside its copy.
      cpSync(installed('dependency-cruiser'), own('dependency-cruiser'), { recursive: true })
      for (const name of Object.keys(readManifest(installed('dependency-cruiser')).dependencies)) {
        mkdirSync(dirname(own(name)), { recursive: true })
        symlinkSync(installed(name), own(name))
      }
      for (const name of ['typescript', 'zod']) symlinkSync(installed(name), own(name))
      mkdirSync(own('.bin'))
      symlinkSync('../dependency-cruiser/bin/dependency-cruiser.mjs', own('.bin/depcruise'))
      symlinkSync(process.execPath, own('.bin/node'))
      write({
        'node_modules/dependency-cruiser/node_modules/typescript/package.json': JSON.stringify({
          name: 'typescript',
          version: '7.0.2',
          main: 'main.js',
        }),
        'node_modules/dependency-cruiser/node_modules/typescript/main.js': `exports.version = '7.0.2'\n`,
      })
    },
  }
}

/** The project's own manifest: the tools and the given packages at their real versions. */
function manifest(packages: string[]): string {
  const { scripts, devDependencies, dependencies } = readManifest(repository)
  const tools = [
    '@types/node',
    'dependency-cruiser',
    'knip',
    'oxlint',
    'oxlint-tsgolint',
    'prettier',
    '@textlint/textlint-plugin-text',
    'textlint',
    'textlint-rule-prh',
    'typescript',
    'typescript-7',
  ]
  return `${JSON.stringify(
    {
      name: 'sample',
      version: '0.0.0',
      type: 'module',
      bin: { tallygate: 'bin/tallygate.js' },
      scripts: { check: scripts['check'], format: scripts['format'] },
      dependencies: Object.fromEntries(packages.map((name) => [name, dependencies[name] ?? devDependencies[name]])),
      devDependencies: Object.fromEntries(tools.map((tool) => [tool, devDependencies[tool]])),
    },
    null,
    2,
  )}\n`
}

interface Manifest {
  scripts: Record<string, string>
  dependencies: Record<string, string>
  devDependencies: Record<string, string>
}

function readManifest(folder: string): Manifest {
  return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Manifest
}
