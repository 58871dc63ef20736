/** The bill of materials of what ships: what npm installs of the package, and the packages whose code is in its bundles. */

/** The parts of a CycloneDX document that this needs. */
interface Bom {
  readonly components: readonly { readonly 'bom-ref': string; readonly name: string; readonly version: string }[]
  readonly dependencies: readonly { readonly ref: string; readonly dependsOn?: readonly string[] }[]
}

export interface SbomInputs {
  /** Of the whole lock file, as text. */
  readonly whole: string
  /** Of what npm installs of the package, as text. */
  readonly installed: string
  /** `name@version` of packages whose code is in the bundles. */
  readonly bundled: readonly string[]
}

/** @throws Error if a bundled package is not in the lock file */
export function sbomOf({ whole, installed, bundled }: SbomInputs): string {
  const all = JSON.parse(whole) as Bom
  const shipped = JSON.parse(installed) as Bom
  const refs = new Set(shipped.components.map((each) => each['bom-ref']))
  for (const id of bundled) {
    const found = all.components.filter(({ name, version }) => `${name}@${version}` === id)
    if (found.length === 0) throw new Error(`${id} is in a bundle and not in package-lock.json`)
    for (const each of found) refs.add(each['bom-ref'])
  }
  const components = all.components
    .filter((each) => refs.has(each['bom-ref']))
    // npm marks them as development packages, because it does not install them with the package.
    .map((each) => ({ ...each, scope: 'required', properties: undefined }))
  const roots = new Set(shipped.dependencies.map(({ ref }) => ref).filter((ref) => !refs.has(ref)))
  const dependencies = all.dependencies
    .filter(({ ref }) => refs.has(ref) || roots.has(ref))
    .map(({ ref, dependsOn = [] }) => ({ ref, dependsOn: dependsOn.filter((each) => refs.has(each)) }))
  return `${JSON.stringify({ ...shipped, components, dependencies }, null, 2)}\n`
}
