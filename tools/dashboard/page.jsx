// The dashboard as a page: Grafana's own field processing and components at dashboard.json's places, over Prometheus' answers.
import React from 'react';
import { createRoot } from 'react-dom/client';
import {
  applyFieldOverrides, createTheme, dateTime, getDisplayValueAlignmentFactors, getFieldDisplayName, getFieldDisplayValues,
  getValueFormat, formattedValueToString, Registry, ThemeContext, toDataFrame, FieldType,
} from '@grafana/data';
import { BarGauge, BigValue, GlobalStyles, PanelChrome, TimeSeries, VizRepeater } from '@grafana/ui';
import board from '../../docs/prometheus/dashboard.json';
import recorded from './build/answers.json';
import 'uplot/dist/uPlot.min.css';

const theme = createTheme({ colors: { mode: 'light' } });
const WIDTH = 1400, ROW = 30, GAP = 8;
const timeRange = { from: dateTime(recorded.begin * 1000), to: dateTime(recorded.end * 1000) };
timeRange.raw = { from: timeRange.from, to: timeRange.to };

// What Grafana's panels make of a field's settings; their editors are not needed here.
const settings = new Registry(() => {
  const plain = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'color', 'thresholds', 'mappings'];
  const custom = ['drawStyle', 'lineInterpolation', 'lineWidth', 'fillOpacity', 'stacking'];
  const item = (id, isCustom) => ({ id: isCustom ? `custom.${id}` : id, path: id, name: id, isCustom, process: (value) => value, shouldApply: () => true });
  return [...plain.map((id) => item(id, false)), ...custom.map((id) => item(id, true))];
});

const legend = (format, labels) => format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? '');

function frames(panel) {
  const data = panel.targets.flatMap((target) =>
    recorded.answers[`${panel.id}${target.refId}`].map(({ metric, value, values = [value] }) => {
      const known = new Map(values.map(([at, text]) => [at, Number.isFinite(+text) ? +text : null]));
      const times = [];
      for (let at = recorded.begin; at <= recorded.end; at += recorded.step) times.push(at);
      const shown = target.instant ? [...known.keys()] : times;
      const config = { displayNameFromDS: legend(target.legendFormat, metric), interval: recorded.step * 1000 };
      return toDataFrame({
        refId: target.refId,
        fields: [
          { name: 'Time', type: FieldType.time, values: shown.map((at) => at * 1000), config: { interval: recorded.step * 1000 } },
          { name: 'Value', type: FieldType.number, labels: metric, config, values: shown.map((at) => known.get(at) ?? null) },
        ],
      });
    })
  );
  return applyFieldOverrides({ data, fieldConfig: panel.fieldConfig, fieldConfigRegistry: settings, replaceVariables: (text) => text, theme, timeZone: 'utc' });
}

const reduced = (panel, data) =>
  getFieldDisplayValues({ fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions, replaceVariables: (text) => text, theme, data, timeZone: 'utc' });

function Stat({ panel, data, width, height }) {
  const values = reduced(panel, data);
  const render = ({ value, width, height, count, alignmentFactors }) => {
    const shown = count > 1 ? value.display : { ...value.display, title: undefined };
    return <BigValue value={shown} {...panel.options} {...{ width, height, count, theme, alignmentFactors }} />;
  };
  return <VizRepeater getValues={() => values} getAlignmentFactors={getDisplayValueAlignmentFactors} renderValue={render}
    source={data} renderCounter={1} autoGrid {...{ width, height }} orientation={panel.options.orientation} />;
}

function Bars({ panel, data, width, height }) {
  const values = reduced(panel, data);
  const { minVizHeight, minVizWidth, namePlacement, orientation, showUnfilled, valueMode, displayMode } = panel.options;
  const render = ({ value, width, height, alignmentFactors }) => (
    <BarGauge value={value.display} field={value.field} display={value.view?.getFieldDisplayProcessor(value.colIndex)} itemSpacing={8} lcdCellWidth={12}
      valueDisplayMode={valueMode} {...{ width, height, orientation, theme, alignmentFactors, showUnfilled, displayMode, namePlacement }} />
  );
  return <VizRepeater getValues={() => values} getAlignmentFactors={getDisplayValueAlignmentFactors} renderValue={render} source={data}
    renderCounter={1} itemSpacing={8} {...{ width, height, orientation, minVizHeight, minVizWidth }} />;
}

const marks = (recorded.answers.mark0 ?? []).flatMap(({ values }) => values.filter(([at], n) => !n || at - values[n - 1][0] > recorded.step));

function Lines({ panel, data, width, height }) {
  if (!data.length) return <Nothing />;
  const paint = (config) => {
    config.addHook('draw', (plot) => {
      plot.ctx.fillStyle = theme.visualization.getColorByName(board.annotations.list[0].iconColor);
      for (const [at] of marks) plot.ctx.fillRect(plot.valToPos(at * 1000, 'x', true), plot.bbox.top, 2, plot.bbox.height);
    });
  };
  return <TimeSeries frames={data} timeZone="utc" legend={panel.options.legend} {...{ width, height, timeRange }}>{paint}</TimeSeries>;
}

// Grafana's state-timeline is in none of its libraries: a row for each field, drawn here from the words and colours of its values.
function States({ panel, data, width, height }) {
  const left = 150, bottom = 22, row = (height - bottom) / data.length;
  const x = (at) => left + ((at / 1000 - recorded.begin) / (recorded.end - recorded.begin)) * (width - left);
  const spans = ({ fields: [time, field] }) => {
    const found = [];
    field.values.forEach((value, n) => {
      const last = found.at(-1);
      if (last && last.value === value) last.to = time.values[n] + recorded.step * 1000;
      else found.push({ value, from: time.values[n], to: time.values[n] + recorded.step * 1000, ...field.display(value) });
    });
    return found.filter(({ value }) => value !== null);
  };
  const ticks = Array.from({ length: 8 }, (_, n) => (recorded.begin + ((n + 0.5) * (recorded.end - recorded.begin)) / 8) * 1000);
  const time = (at) => formattedValueToString(getValueFormat('time:HH:mm:ss')(at, 0, 0, 'utc'));
  return (
    <svg {...{ width, height }} fontSize="12" fill={theme.colors.text.primary}>
      {data.map((frame, n) => (
        <g key={n} transform={`translate(0 ${n * row + row * (1 - panel.options.rowHeight) / 2})`}>
          <text x={left - 10} y={row / 2} textAnchor="end">{getFieldDisplayName(frame.fields[1], frame, data)}</text>
          {spans(frame).map(({ from, to, color, text }) => (
            <g key={from}>
              <rect x={x(from)} width={Math.min(x(to), width) - x(from)} height={row * panel.options.rowHeight} fill={color}
                fillOpacity={panel.fieldConfig.defaults.custom.fillOpacity / 100} />
              {x(to) - x(from) > 7 * text.length && <text x={x(from) + 4} y={row / 2}>{text}</text>}
            </g>
          ))}
        </g>
      ))}
      {ticks.map((at) => <text key={at} x={x(at)} y={height - 6} textAnchor="middle" fill={theme.colors.text.secondary}>{time(at)}</text>)}
    </svg>
  );
}

const Nothing = () => <div style={{ textAlign: 'center', paddingTop: '20%', color: theme.colors.text.secondary }}>No data</div>;
const KINDS = { stat: Stat, bargauge: Bars, timeseries: Lines, 'state-timeline': States };

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos, column = (WIDTH - GAP) / 24, Kind = KINDS[panel.type], data = frames(panel);
  return (
    <div style={{ position: 'absolute', left: GAP + x * column, top: GAP + y * (ROW + GAP) }}>
      <PanelChrome title={panel.title} description={panel.description} width={w * column - GAP} height={h * (ROW + GAP) - GAP}>
        {(width, height) => <Kind {...{ panel, data, width, height }} />}
      </PanelChrome>
    </div>
  );
}

const rows = Math.max(...board.panels.map(({ gridPos: { y, h } }) => y + h));
document.body.style.height = `${GAP + rows * (ROW + GAP)}px`;
createRoot(document.getElementById('board')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {board.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
  </ThemeContext.Provider>
);
