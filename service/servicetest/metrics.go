package servicetest

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Meter reads the metrics of services that are made after it. Its test must not run in parallel with others: the
// provider is the process's.
type Meter struct {
	T      *testing.T
	Reader *metric.ManualReader
}

// NewMeter reads the metrics of services that are made from now on.
func NewMeter(t *testing.T) *Meter {
	t.Helper()
	m := &Meter{T: t, Reader: metric.NewManualReader()}
	before := otel.GetMeterProvider()
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(m.Reader)))
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	return m
}

// Counter is the value of a counter with these attributes ("key=value key=value") and any others.
func (m *Meter) Counter(name, attributes string) (sum int64) {
	m.T.Helper()
	var collected metricdata.ResourceMetrics
	if err := m.Reader.Collect(context.Background(), &collected); err != nil {
		m.T.Fatal(err)
	}
	for _, scope := range collected.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if counter, is := metric.Data.(metricdata.Sum[int64]); is && metric.Name == name {
				for _, point := range counter.DataPoints {
					if has(point.Attributes, attributes) {
						sum += point.Value
					}
				}
			}
		}
	}
	return sum
}

// Names are those of all metrics.
func (m *Meter) Names() (names []string) {
	m.T.Helper()
	var collected metricdata.ResourceMetrics
	if err := m.Reader.Collect(context.Background(), &collected); err != nil {
		m.T.Fatal(err)
	}
	for _, scope := range collected.ScopeMetrics {
		for _, metric := range scope.Metrics {
			names = append(names, metric.Name)
		}
	}
	return names
}

// Values are those of all series of a metric with these attributes and any others: of histograms the counts.
func (m *Meter) Values(name, attributes string) (values []float64) {
	m.T.Helper()
	var collected metricdata.ResourceMetrics
	if err := m.Reader.Collect(context.Background(), &collected); err != nil {
		m.T.Fatal(err)
	}
	for _, scope := range collected.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name == name {
				values = append(values, valuesOf(metric.Data, attributes)...)
			}
		}
	}
	return values
}

func valuesOf(data metricdata.Aggregation, attributes string) (values []float64) {
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		values = numbers(data.DataPoints, attributes)
	case metricdata.Sum[float64]:
		values = numbers(data.DataPoints, attributes)
	case metricdata.Gauge[int64]:
		values = numbers(data.DataPoints, attributes)
	case metricdata.Gauge[float64]:
		values = numbers(data.DataPoints, attributes)
	case metricdata.Histogram[float64]:
		for _, point := range data.DataPoints {
			if has(point.Attributes, attributes) {
				values = append(values, float64(point.Count))
			}
		}
	}
	return values
}

func numbers[N int64 | float64](points []metricdata.DataPoint[N], attributes string) (values []float64) {
	for _, point := range points {
		if has(point.Attributes, attributes) {
			values = append(values, float64(point.Value))
		}
	}
	return values
}

func has(set attribute.Set, attributes string) bool {
	for pair := range strings.FieldsSeq(attributes) {
		key, want, _ := strings.Cut(pair, "=")
		if got, ok := set.Value(attribute.Key(key)); !ok || got.String() != want {
			return false
		}
	}
	return true
}
