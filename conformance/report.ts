/** Results for people, for programs, and for what reads JUnit XML. */
import type { Result } from './runner.ts'

const SIGNS = { passed: 'ok  ', failed: 'FAIL', 'not shown': '--  ' } as const

export function line({ outcome, name, because, ms }: Result): string {
  const detail = because === undefined ? '' : `\n     ${because.replaceAll('\n', '\n     ')}`
  if (outcome === 'not shown') return `${SIGNS[outcome]} ${name}: not shown, ${because ?? ''}`
  return `${SIGNS[outcome]} ${name} (${ms.toFixed(0)} ms)${detail}`
}

export function summary(results: readonly Result[]): string {
  const count = (outcome: Result['outcome']): number => results.filter((result) => result.outcome === outcome).length
  return `${count('passed')} passed, ${count('failed')} failed, ${count('not shown')} not shown`
}

export function json(results: readonly Result[]): string {
  return JSON.stringify(
    results.map(({ check, version, name, outcome, because, ms }) => ({
      name,
      version,
      shows: check.shows,
      outcome,
      ...(because === undefined ? {} : { because }),
      ms: Math.round(ms),
    })),
    null,
    2,
  )
}

export function junit(results: readonly Result[]): string {
  const failed = results.filter(({ outcome }) => outcome === 'failed').length
  const skipped = results.filter(({ outcome }) => outcome === 'not shown').length
  const cases = results.map(({ name, version, outcome, because = '', ms }) => {
    const head = `    <testcase classname="conformance.${version}" name="${escaped(name)}" time="${(ms / 1000).toFixed(3)}"`
    if (outcome === 'passed') return `${head}/>`
    const tag = outcome === 'failed' ? 'failure' : 'skipped'
    return `${head}><${tag} message="${escaped(because)}"/></testcase>`
  })
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    '<testsuites>',
    `  <testsuite name="conformance" tests="${results.length}" failures="${failed}" skipped="${skipped}">`,
    ...cases,
    '  </testsuite>',
    '</testsuites>',
    '',
  ].join('\n')
}

/** For an attribute; control characters, which XML has no way to carry, become blanks. */
function escaped(text: string): string {
  return text
    .replaceAll(/[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD]/g, ' ')
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('"', '&quot;')
    .replaceAll(/[\n\r\t]/g, ' ')
}
