/**
 * Another entry point in the folder of a module: its source in a clone, its bundle in an installation.
 *
 * @param url `import.meta.url` of the module
 * @param name without extension
 */
export function entryPointBeside(url: string, name: string): URL {
  return new URL(`${name}.${url.endsWith('.ts') ? 'ts' : 'js'}`, url)
}
