import { expect, it } from 'vitest'

it('runs the tests under a Node that strips types, whatever Node npm itself runs under', () => {
  expect(Number(process.versions.node.split('.')[0])).toBeGreaterThanOrEqual(24)
  expect(process.features.typescript).toBe('strip')
})
