// Holds dashboard.json against Grafana's own TypeScript types, of each version that package.json names: `npm run check`.
// TypeScript finds what is unknown, missing or of another type; there is no such check in Grafana's import, which takes anything.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';

const board = JSON.parse(readFileSync(process.argv[2] ?? '../../docs/prometheus/dashboard.json', 'utf8'));
const kinds = { stat: 'Stat', bargauge: 'BarGauge', timeseries: 'TimeSeries', 'state-timeline': 'StateTimeline' };
const raw = '@grafana/schema/dist/esm/raw';
const folder = (kind) => kind.replace('-', '');
const text = (value) => JSON.stringify(value, null, 1);
const lines = Object.entries(kinds).map(
  ([kind, name]) => `import type * as ${name} from '${raw}/composable/${folder(kind)}/panelcfg/x/${name}PanelCfg_types.gen';`
);
// What the types of the whole leave open (a record of unknown values) is held against the panel's own types.
const open = (panel, at) => {
  const name = kinds[panel.type];
  const fields = ['timeseries', 'state-timeline'].includes(panel.type) ? `${name}.FieldConfig` : 'Record<string, never>';
  const where = `// panel ${panel.id}, ${panel.title}`;
  return [
    `${where}\nexport const options${at}: Json<Partial<${name}.Options>> = ${text(panel.options)};`,
    `export const custom${at}: Json<${fields}> = ${text(panel.fieldConfig.defaults.custom)};`,
    ...panel.targets.map((target, n) => `export const query${at}x${n}: Json<PrometheusDataQuery> = ${text(target)};`),
  ];
};
lines.push(
  `import type { AnnotationQuery, Dashboard } from '@grafana/schema';`,
  `import type { PrometheusDataQuery } from 'schema-10/dist/esm/raw/composable/prometheus/dataquery/x/PrometheusDataQuery_types.gen';`,
  // JSON has the words of an enum, not its members.
  'type Json<T> = T extends string ? `${T}` : T extends (infer E)[] ? Json<E>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;',
  `export const whole: Json<Dashboard> = ${text({ ...board, annotations: undefined })};`,
  // Prometheus' own keys of an annotation, beside those that every source has.
  'type Mark = Json<AnnotationQuery> & { expr: string; titleFormat: string; target: Json<PrometheusDataQuery> };',
  ...board.annotations.list.map((mark, n) => `export const mark${n}: Mark = ${text(mark)};`),
  ...board.panels.flatMap(open)
);
mkdirSync('build', { recursive: true });
writeFileSync('build/board.ts', lines.join('\n') + '\n');

const versions = { 'schema-10': 'schema-10/dist/esm/index.d.ts', 'schema-13': 'schema-13/dist/types/index.d.ts' };
let failed = false;
for (const [version, entry] of Object.entries(versions)) {
  const paths = { '@grafana/schema': [`../node_modules/${entry}`], '@grafana/schema/dist/*': [`../node_modules/${version}/dist/*`] };
  const options = { strict: true, noEmit: true, module: 'esnext', moduleResolution: 'bundler', types: [], skipLibCheck: true, paths };
  writeFileSync('build/tsconfig.json', text({ compilerOptions: options, files: ['board.ts'] }));
  try {
    execFileSync('node_modules/.bin/tsc', ['-p', 'build'], { stdio: 'inherit' });
    console.log(`${version}: as Grafana's types have it`);
  } catch {
    failed = true;
    console.log(`${version}: differs, see above`);
  }
}
process.exit(failed ? 1 : 0);
