/** The site of the README, as a file for `tallygate apply`. */
export const SAMPLE_SITE = `# Change this file and run: tallygate apply -f site.yaml
rateTables:
  - version: '1'
    effectiveFrom: 0
    items:
      - { name: LaserCut, version: '1.0', rate: 0.85 }
      - { name: LaserEngrave, version: '1.0', rate: 0.4 }
instances:
  - shortName: Workshop
    accountId: me
    lineItems:
      - activationId: FIRST-1000
        quantity: 1000
`
