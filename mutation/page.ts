/** The page of mutation testing: scores, and each surviving mutant with the reason why it stays. */
import type { Area } from './areas.ts'
import { type Survivor, percent, scoreOf } from './report.ts'
import { reasonFor } from './survivors.ts'

const TEXT_MAX = 90

const INTRODUCTION = `# Mutation testing

[Stryker](https://stryker-mutator.io) changes one expression of the source at a time and runs the tests that reach it. A change that no
test notices has survived: a test is missing, or the change makes no difference. The areas are core, and the paths of the agent and of
the cloud on which tokens are charged, granted and billed.

\`\`\`
npm run mutation                                      all areas, then this page
npm run mutation -- core agent-sessions               these areas
npm run mutation -- core --file src/core/accounts/grant.ts     one file, as text, without this page
npm run mutation -- --concurrency 4                   four mutants at a time
npm run mutation -- --page-only                       this page from the last reports
\`\`\`

A run keeps its results in \`.tallygate/mutation\`, and the next one tests only mutants of code or tests that have changed; \`--force\`
tests all of them. It takes from seconds to an hour for each area and is not part of CI.

- The areas, their files and their tests are in \`mutation/areas.ts\`. The tests of an area start no processes. Tests that take seconds and
  kill what others kill are left out.
- All tests of an area run in one process, which imports the code once (\`mutation/test-runner.ts\`). Properties draw at most 20 cases each.
  What is kept to save time stays from mutant to mutant, so that a few survive that a fresh process would kill.
- Not mutated: the words of errors (\`mutation/ignore-error-text.ts\`), and constants of modules, which every test of an area would have
  to be run for.
- The reasons of the survivors are in \`mutation/survivors.ts\`. A survivor without a reason is listed as such.

## Scores

`

export function page(areas: readonly Area[]): string {
  const scores = areas.flatMap((area) => scoreOf(area) ?? [])
  const rows = areas.map((area) => {
    const score = scores.find((each) => each.area === area)
    const cells =
      score === undefined
        ? ['', '', '', '', 'not measured']
        : [score.mutants, score.killed, score.endless, score.survivors.length, percent(score)]
    return `| ${area.title} | \`${area.name}\` | ${cells.join(' | ')} | ${area.target} % |`
  })
  const lists = scores.map(({ area, survivors }) => `### ${area.title}\n\n${survivorList(survivors)}`)
  return [
    `${INTRODUCTION}| Area | Name | Mutants | Killed | Of these endless | Survived | Score | Target |`,
    '| --- | --- | --- | --- | --- | --- | --- | --- |',
    ...rows,
    '',
    '## Survivors',
    '',
    'By reason, with the lines of the source at the time of the run.',
    '',
    lists.join('\n\n'),
    '',
  ].join('\n')
}

function survivorList(survivors: readonly Survivor[]): string {
  if (survivors.length === 0) return 'None.'
  const byReason = Map.groupBy(survivors, (survivor) => reasonFor(survivor) ?? 'No reason yet.')
  return [...byReason]
    .toSorted(([, a], [, b]) => b.length - a.length)
    .map(([reason, those]) => `${reason}\n\n${those.map(line).join('\n')}`)
    .join('\n\n')
}

function line({ file, line: at, before, after }: Survivor): string {
  return `- \`${file}:${at}\` ${code(before)} → ${code(after === '' ? '(removed)' : after)}`
}

function code(text: string): string {
  const short = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)} …` : text
  return short.includes('`') ? `\`\` ${short} \`\`` : `\`${short}\``
}
