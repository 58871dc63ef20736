// The manual pages: one for each command, in the form that man takes.
import { execFileSync } from 'node:child_process'
import { readFileSync, readdirSync } from 'node:fs'
import { describe, expect, it, test } from 'vitest'
import { programForTest } from '../support/program.ts'

const folder = new URL('../../docs/reference/man/', import.meta.url)
const names = readdirSync(folder)
const read = (name: string): string => readFileSync(new URL(name, folder), 'utf8')

const MACROS = new Set(['TH', 'SH', 'SS', 'TP', 'B', 'I', 'BR', 'RI', 'br', 'nf', 'fi', '\\"'])

describe.each(names)('%s', (name) => {
  it('has the sections that are looked for, and nothing that is taken for a macro by mistake', () => {
    const page = read(name)
    for (const section of ['NAME', 'DESCRIPTION', '"SEE ALSO"']) expect(page).toContain(`\n.SH ${section}\n`)
    const macros = page.split('\n').flatMap((line) => /^[.']\s*(\S+)/.exec(line)?.[1] ?? [])
    expect(macros.filter((macro) => !MACROS.has(macro))).toEqual([])
    // In the place of a name, "apropos" reads one line.
    expect(page).toMatch(/\n\.SH NAME\n\S[^\n]* \\- [^\n]+\n\.SH /)
  })
})

test('there is one for each command, and the one of settings', () => {
  for (const name of ['tallygate.1', 'tallygate-doctor.1', 'tallygate-devices.1', 'tallygate.toml.5']) {
    expect(names).toContain(name)
  }
  expect(read('tallygate.1')).toContain('.BR tallygate\\-explain (1)')
  expect(read('tallygate.toml.5')).toContain('TALLYGATE_AGENT_SOCKET_PATH')
})

test('a default has the form in which it is given', () => {
  expect(read('tallygate-status.1')).toContain('which it implies (default: 2s)')
  expect(read('tallygate-usage.1')).toContain(String.raw`requester or device (default: instance,line\-item,item)`)
  expect(read('tallygate-usage.1')).toContain('output format (default: csv). One of: csv, ndjson.')
})

test('man prints every page without a warning', { timeout: 120_000 }, (context) => {
  programForTest(context, 'man')
  const env = { ...process.env, LC_ALL: 'C.UTF-8', MANWIDTH: '80' }
  for (const name of names) {
    const options = ['--warnings', '-E', 'UTF-8', '-l', '-Tutf8', '-Z', new URL(name, folder).pathname]
    const printed = execFileSync('sh', ['-c', 'man "$@" 2>&1 >/dev/null', 'sh', ...options], { encoding: 'utf8', env })
    expect([name, printed]).toEqual([name, ''])
  }
})
