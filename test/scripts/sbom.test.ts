import { expect, it } from 'vitest'
import { sbomOf } from '../../scripts/release/sbom.ts'

const component = (name: string) => ({ 'bom-ref': `${name}@1.0.0`, name, version: '1.0.0', scope: 'excluded' })
const root = { ref: 'product@1.0.0', dependsOn: ['native@1.0.0', 'bundled@1.0.0', 'tool@1.0.0'] }
const whole = JSON.stringify({
  components: [component('native'), component('bundled'), component('inner'), component('tool')],
  dependencies: [
    root,
    { ref: 'bundled@1.0.0', dependsOn: ['inner@1.0.0'] },
    { ref: 'native@1.0.0' },
    { ref: 'tool@1.0.0' },
  ],
})
const installed = JSON.stringify({
  bomFormat: 'CycloneDX',
  components: [component('native')],
  dependencies: [root, { ref: 'native@1.0.0' }],
})

it('lists what npm installs and what is in the bundles, and no tool', () => {
  const sbom = JSON.parse(sbomOf({ whole, installed, bundled: ['bundled@1.0.0', 'inner@1.0.0'] })) as {
    bomFormat: string
    components: { name: string; scope: string }[]
    dependencies: { ref: string; dependsOn: string[] }[]
  }
  expect(sbom.bomFormat).toBe('CycloneDX')
  expect(sbom.components.map(({ name, scope }) => [name, scope])).toEqual([
    ['native', 'required'],
    ['bundled', 'required'],
    ['inner', 'required'],
  ])
  expect(sbom.dependencies).toEqual([
    { ref: 'product@1.0.0', dependsOn: ['native@1.0.0', 'bundled@1.0.0'] },
    { ref: 'bundled@1.0.0', dependsOn: ['inner@1.0.0'] },
    { ref: 'native@1.0.0', dependsOn: [] },
  ])
})

it('refuses a bundled package that is in no lock file', () => {
  expect(() => sbomOf({ whole, installed, bundled: ['unknown@1.0.0'] })).toThrow('unknown@1.0.0')
})
