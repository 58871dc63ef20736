import { expect, it } from 'vitest'
import { isConfirmed } from '../../src/cli/confirm.ts'
import type { Io } from '../../src/cli/io.ts'

it('shows characters of names that a terminal would obey as escapes', async () => {
  const questions: string[] = []
  const io = {
    ask: async (question: string) => {
      questions.push(question)
      return 'y'
    },
  } as unknown as Io
  expect(await isConfirmed('Found press, gateway\u001b[2K\rFound press.', 'lock', {}, io)).toBe(true)
  expect(questions).toEqual(['Found press, gateway\\u001b[2K\\u000dFound press. Run lock? [y/N] '])
})
