/**
 * Matches the paths of a route.
 * @param route a name with a leading colon is a parameter: the group of that name
 * @param parameter source of a pattern, what a parameter can be
 */
export function pathPattern(route: string, parameter: string): RegExp {
  const source = route
    .split(/:(\w+)/)
    .map((part, index) => (index % 2 === 0 ? RegExp.escape(part) : `(?<${part}>${parameter})`))
  return new RegExp(`^${source.join('')}$`)
}
