import { expect, test } from 'vitest'
import { presenterFor } from '../../src/demo/presenter.ts'

function screen(isTTY: boolean) {
  let written = ''
  const presenter = presenterFor({ isTTY, columns: 60, write: (text) => (written += text) })
  return { presenter, written: () => written }
}

test('without a terminal there are plain lines and no progress', () => {
  const { presenter, written } = screen(false)
  presenter.step('started')
  presenter.progress(1, 10, '07:00')
  presenter.lines(['a', 'b'])
  expect(written()).toBe('started\na\nb\n')
})

test('on a terminal the bar moves below the steps, fits the line, and leaves nothing behind', () => {
  const { presenter, written } = screen(true)
  presenter.progress(600, 1200, '09:30')
  expect(written()).toBe('\r\u001b[K████████████░░░░░░░░░░░░ 600 of 1,200  09:30')
  presenter.step('cut')
  expect(written()).toContain('\r\u001b[K✓ cut\n\r\u001b[K████')
  presenter.progress(700, 1200, 'x'.repeat(100))
  const lastLine = written().split('\u001b[K').at(-1)!
  expect(lastLine).toHaveLength(59)
  presenter.lines(['done'])
  expect(written().endsWith('\r\u001b[Kdone\n')).toBe(true)
})
