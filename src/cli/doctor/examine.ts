import { CHECKS, type Finding } from './checks.ts'
import type { Observations } from './observations.ts'
import { messageOf } from '../../protocol/errors.ts'

export interface Examined extends Finding {
  readonly name: string
}

export const RESULT_EXIT = { ok: 0, warn: 1, fail: 2 } as const

export interface Examination {
  readonly result: keyof typeof RESULT_EXIT
  readonly checks: readonly Examined[]
}

/** Never throws: a failed check is reported as a finding. */
export function examine(observations: Observations): Examination {
  const checks = CHECKS.map(({ name, run }): Examined => {
    try {
      return { name, ...run(observations) }
    } catch (error) {
      const evidence = `the check failed: ${messageOf(error)}`
      return {
        name,
        level: 'warn',
        evidence,
        remedy: 'Send a support bundle (tallygate support-bundle): this is a bug in tallygate.',
      }
    }
  })
  const has = (level: Finding['level']): boolean => checks.some((each) => each.level === level)
  return { result: has('fail') ? 'fail' : has('warn') ? 'warn' : 'ok', checks }
}
