import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { project, type Project } from './project.ts'

let sample: Project
beforeEach(() => {
  sample = project()
})
afterEach(() => sample.delete())

/** The result line of each check, without its duration. */
const results = (output: string): string[] =>
  output.split('\n').flatMap((line) => /^(ok|FAIL) +(\w+) +[\d.]+ s$/.exec(line)?.slice(1, 3).join(' ') ?? [])

describe('npm run check', () => {
  it('passes a clean project, with one line for each check', async () => {
    const { exitCode, output } = await sample.check()
    expect(results(output).sort(), output).toEqual([
      'ok arrows',
      'ok format',
      'ok lint',
      'ok prose',
      'ok types',
      'ok unused',
    ])
    expect(exitCode).toBe(0)
  })

  it('runs only the checks that are named', async () => {
    const { exitCode, output } = await sample.check('arrows', 'format')
    expect(results(output).sort(), output).toEqual(['ok arrows', 'ok format'])
    expect(exitCode).toBe(0)
  })

  it('refuses a name that is no check instead of checking nothing', async () => {
    const { exitCode, output } = await sample.check('spelling')
    expect(output).toContain('no such check: spelling')
    expect(exitCode).toBe(64)
  })

  it('fails as a whole when one of several checks fails', async () => {
    sample.write({ 'src/core/double.ts': `export const double = ({ half }: { half: bigint })    => half * 2n\n` })
    sample.write({
      'src/agent/access/answer.ts': `import { double } from '../../core/double.ts'\n\nexport const answer = double\n`,
    })
    const { exitCode, output } = await sample.check('format', 'arrows')
    expect(results(output).sort(), output).toEqual(['FAIL format', 'ok arrows'])
    expect(exitCode).toBe(1)
  })
})

/** What each check must find: the defect, and words of the complaint. */
const defects: {
  check: string
  defect: string
  packages?: string[]
  files: Record<string, string>
  complaint: string[]
}[] = [
  {
    check: 'format',
    defect: 'a line laid out in another way',
    files: { 'src/core/odd.ts': `export const odd   = 1n;\n` },
    complaint: ['src/core/odd.ts'],
  },
  {
    check: 'types',
    defect: 'a number where a bigint belongs',
    files: {
      'src/core/wrong.ts': `import { double } from './double.ts'\n\nexport const wrong = double({ half: 21 })\n`,
    },
    complaint: ['src/core/wrong.ts(3,', "Type 'number' is not assignable to type 'bigint'"],
  },
  {
    check: 'prose',
    defect: 'a word of the avoid list in a page, in a manual page and in a source',
    files: {
      'docs/how-to/keep.md': `# Keep\n\nNobody reads this twice.\n`,
      'docs/reference/man/sample.1': `.SH NAME\nsample \\- leaves the remnant alone\n`,
      'src/core/fact.ts': `// Half of the slack.\nexport const facts = 1n\n`,
    },
    complaint: ['keep.md:3:1: Nobody', 'sample.1:2', 'undelivered entries', 'fact.ts:1:16', 'fact.ts:2:14'],
  },
  {
    check: 'unused',
    defect: 'an unused file, export and package',
    packages: ['pino'],
    files: {
      'src/core/lonely.ts': `export const lonely = 1n\n`,
      'src/agent/platform/store.ts': `export const place = (now: number) => \`at \${now}\`\n\nexport const spare = 1\n`,
    },
    complaint: ['src/core/lonely.ts', 'spare', 'pino'],
  },
]

describe.each(defects)('the check "$check"', ({ check, defect, packages = [], files, complaint }) => {
  it(`finds ${defect}`, async () => {
    sample.declare(...packages)
    sample.write(files)
    const { exitCode, output } = await sample.check(check)
    expect(results(output), output).toEqual([`FAIL ${check}`])
    for (const words of complaint) expect(output).toContain(words)
    expect(exitCode).toBe(1)
  })
})

describe('the check "lint"', () => {
  it('finds ambient time and randomness where decisions are made, a forgotten promise, a stray console, a barrel, and functions above the limits', async () => {
    sample.write({
      'src/core/clock.ts': `export const clock = () => [Date.now(), new Date(), Math.random(), new Date(0)]\n`,
      'src/agent/access/wait.ts':
        `import { randomUUID } from 'node:crypto'\n\n` +
        `export const wait = () => [setTimeout(randomUUID, 1), crypto.randomUUID(), process.env, Date.now]\n`,
      'src/agent/platform/send.ts':
        `const send = () => Promise.resolve(Date.now())\n` +
        `export const forget = () => {\n  send()\n  console.log('sent')\n}\n`,
      'src/core/barrel.ts': `export * from './double.ts'\n`,
      'src/cli/say.ts': `console.log(new Date())\n`,
      'src/cli/add.ts':
        `export const few = (a: number, b: number, c: number, d: number) => a + b + c + d\n` +
        `export const many = (a: number, b: number, c: number, d: number, e: number) => few(a, b, c, d) + e\n` +
        `export function long(): void {\n${'  say()\n'.repeat(69)}}\n` +
        `function say(): void {\n${'  long()\n'.repeat(68)}}\n`,
    })
    const { exitCode, output } = await sample.check('lint')
    expect(results(output), output).toEqual(['FAIL lint'])
    expect(exitCode).toBe(1)
    expect(complaints(output)).toEqual({
      'src/agent/platform/send.ts': ['3 typescript(no-floating-promises)', '4 eslint(no-console)'],
      'src/agent/access/wait.ts': [
        '1 tallygate(no-ambient)',
        '3 eslint(no-restricted-globals)',
        '3 eslint(no-restricted-globals)',
        '3 eslint(no-restricted-globals)',
        '3 eslint(no-restricted-properties)',
        '3 tallygate(no-ambient)',
      ],
      'src/cli/add.ts': ['2 eslint(max-params)', '3 eslint(max-lines-per-function)'],
      'src/core/barrel.ts': ['1 tallygate(no-barrel)'],
      'src/core/clock.ts': [
        '1 eslint(no-restricted-properties)',
        '1 eslint(no-restricted-properties)',
        '1 tallygate(no-ambient)',
      ],
    })
  })
})

/** The lint output as file → "line rule" in a stable order. */
function complaints(output: string): Record<string, string[]> {
  const found: Record<string, string[]> = {}
  for (const line of output.split('\n')) {
    const [, file, at, rule] = /^ +(src\S+?):(\d+):\d+: .* \[Error[/](.+)\]$/.exec(line) ?? []
    if (file !== undefined) (found[file] ??= []).push(`${at} ${rule}`)
  }
  for (const rules of Object.values(found)) rules.sort()
  return found
}

describe('the check "arrows"', () => {
  it('finds every forbidden import, type-only ones included', async () => {
    sample.declare('fastify', 'jose', 'pino', 'smol-toml')
    sample.write({
      'src/core/reads-clock.ts': `import 'node:fs'\n`,
      'src/core/knows-protocol.ts': `import type { Word } from '../protocol/word.ts'\n\nexport type Known = Word\n`,
      'src/protocol/word.ts': `import 'node:crypto'\nimport 'zod'\nimport 'jose'\n\nexport type Word = string\n`,
      'src/protocol/logs.ts': `import 'pino'\n`,
      'src/settings/reads.ts': `import 'node:fs'\nimport 'smol-toml'\n`,
      'src/platform/listens.ts': `import 'node:dgram'\n`,
      'src/agent/access/grab-shared.ts': `import '../../platform/listens.ts'\n`,
      'src/agent/platform/shortcut.ts': `import '../../cloud/accounts/charge.ts'\n`,
      'src/cloud/platform/shortcut.ts': `import type { place } from '../../agent/platform/store.ts'\n\nexport type Place = typeof place\n`,
      'src/cloud/accounts/charge.ts': `import 'fastify'\n`,
      'src/cloud/command.ts': `import '../cli/main.ts'\n`,
      'src/agent/access/grab.ts': `import '../platform/store.ts'\n`,
      'src/agent/access/compose-self.ts': `import '../compose.ts'\n`,
      'src/agent/access/listen.ts': `import type { Server } from 'node:http'\n\nexport type Listening = Server\n`,
      'src/agent/assemble.ts': `import './platform/store.ts'\n`,
      'src/demo/inside.ts': `import '../agent/compose.ts'\n`,
      'src/client/shortcut.ts': `import '../agent/compose.ts'\n`,
      'sdk/node/src/index.ts': `import '../../../src/client/shortcut.ts'\nimport 'node:http'\nimport 'node:fs'\n`,
      'src/cli/client.ts': `import '../../sdk/node/src/index.ts'\n`,
      'src/cli/tests.ts': `import '../../test/fake.ts'\n`,
      'test/fake.ts': `export const fake = 1\n`,
      'src/cli/nowhere.ts': `import './missing.ts'\n`,
      'src/cli/borrowed.ts': `import 'prettier'\n`,
      'src/cloud/platform/left.ts': `import type { Right } from './right.ts'\n\nexport type Left = Right\n`,
      'src/cloud/platform/right.ts': `import type { Left } from './left.ts'\n\nexport type Right = Left\n`,
    })
    const { exitCode, output } = await sample.check('arrows')
    expect(results(output), output).toEqual(['FAIL arrows'])
    expect(exitCode).toBe(1)
    expect(output).toContain('agent and cloud never import each other.')
    const found = output.split('\n').flatMap((line) => /^ {6}([\w-]+: (?:src|sdk).*)$/.exec(line)?.[1] ?? [])
    expect(found.map((line) => line.replace(/→ \S*node_modules[/]([\w-]+)\S*/, '→ package $1')).sort()).toEqual([
      'agent-and-cloud-meet-on-the-wire: src/agent/platform/shortcut.ts → src/cloud/accounts/charge.ts',
      'agent-and-cloud-meet-on-the-wire: src/cloud/platform/shortcut.ts → src/agent/platform/store.ts',
      'capabilities-do-no-io: src/agent/access/listen.ts → http',
      'capabilities-do-no-io: src/cloud/accounts/charge.ts → package fastify',
      'capabilities-know-no-adapters: src/agent/access/grab-shared.ts → src/platform/listens.ts',
      'capabilities-know-no-adapters: src/agent/access/grab.ts → src/agent/platform/store.ts',
      'client-package-stands-alone: sdk/node/src/index.ts → fs',
      'client-package-stands-alone: sdk/node/src/index.ts → src/client/shortcut.ts',
      'client-sees-the-wire: src/client/shortcut.ts → src/agent/compose.ts',
      'composed-know-no-composition: src/agent/access/compose-self.ts → src/agent/compose.ts',
      'core-is-pure: src/core/knows-protocol.ts → src/protocol/word.ts',
      'core-is-pure: src/core/reads-clock.ts → fs',
      'demo-talks-to-processes: src/demo/inside.ts → src/agent/compose.ts',
      'no-cycles: src/cloud/platform/left.ts → src/cloud/platform/right.ts → src/cloud/platform/left.ts',
      'no-unresolved: src/cli/nowhere.ts → ./missing.ts',
      'only-compose-names-adapters: src/agent/assemble.ts → src/agent/platform/store.ts',
      'platform-is-small: src/platform/listens.ts → dgram',
      'product-knows-no-scaffold: src/cli/client.ts → sdk/node/src/index.ts',
      'product-knows-no-scaffold: src/cli/tests.ts → test/fake.ts',
      'product-needs-no-dev-packages: src/cli/borrowed.ts → package prettier',
      'protocol-knows-core: src/protocol/logs.ts → package pino',
      'settings-stand-alone: src/settings/reads.ts → fs',
      'sides-know-no-command: src/cloud/command.ts → src/cli/main.ts',
    ])
  })

  it('fails when dependency-cruiser cannot use the compiler and has read only what plain JavaScript shows', async () => {
    sample.breakCompilerForArrows()
    const { exitCode, output } = await sample.check('arrows')
    expect(results(output), output).toEqual(['FAIL arrows'])
    expect(output).toMatch(/Read \d of \d+ TypeScript files, so the arrows are unproven/)
    expect(output).toContain('scripts/check.ts')
    expect(exitCode).toBe(1)
  })

  it('fails when its rules pass over type-only imports', async () => {
    sample.write({
      '.dependency-cruiser.mjs': `export default { forbidden: [], options: { tsPreCompilationDeps: false } }\n`,
    })
    sample.write({ 'src/core/kind.ts': `import type { Half } from './double.ts'\n\nexport type Kind = Half\n` })
    const { exitCode, output } = await sample.check('arrows')
    expect(output).toContain('Not read:\n        src/core/kind.ts')
    expect(exitCode).toBe(1)
  })

  it('fails when its rules leave out a file', async () => {
    sample.write({
      '.dependency-cruiser.mjs': `export default { forbidden: [], options: { exclude: '^src/core/' } }\n`,
    })
    const { exitCode, output } = await sample.check('arrows')
    expect(output).toContain('Not read:\n        src/core/double.ts')
    expect(exitCode).toBe(1)
  })
})
