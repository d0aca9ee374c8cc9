package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// element is what a test requests to know of an element of a picture.
type element struct {
	name, text string
	attributes map[string]string
}

// elements reads a picture, which must be well-formed.
func elements(t *testing.T, svg string) (all []element) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		assert.Require(t, err == nil, "%v in %s", err, svg)
		switch token := token.(type) {
		case xml.StartElement:
			e := element{name: token.Name.Local, attributes: map[string]string{}}
			for _, a := range token.Attr {
				e.attributes[a.Name.Local] = a.Value
			}
			all = append(all, e)
		case xml.CharData:
			if len(all) > 0 {
				all[len(all)-1].text += strings.TrimSpace(string(token))
			}
		}
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	return assert.Must(strconv.ParseFloat(text, 64))(t)
}

func sample() chart {
	return chart{"Rows <a second> & memory", "records", []panel{
		{"rows/s", []line{{"rows", []point{{1e2, 10, 20, 30}, {1e4, 15, 40, 40}, {1e6, 1, 5, 60}}}}},
		{"ms", []line{
			{"p50", []point{{1e2, 1, 10, 20}, {1e6, 60, 80, 100}}},
			{"p99", []point{{1e2, 20, 30, 40}, {1e6, 100, 1000, 2000}}},
		}},
	}}
}

func TestChart_SaysWhatIsMeasuredAndReadsInLightAndDark(t *testing.T) {
	svg := sample().String()
	var texts []string
	for _, e := range elements(t, svg) {
		if e.name == "text" || e.name == "title" {
			texts = append(texts, e.text)
		}
	}
	for _, want := range []string{
		"Rows <a second> & memory", "records (log scale)", "rows/s (log scale)", "ms (log scale)", "p50", "p99",
		"100", "10k", "1M",
	} {
		assert.That(t, slices.Contains(texts, want), "there is no %q in %q", want, texts)
	}
	assert.That(t, !slices.Contains(texts, "rows"), "one line alone needs no name")
	assert.That(t, strings.Contains(svg, "prefers-color-scheme:dark"), "letters are as dark as a dark page")
}

func TestChart_PutsSizesOfALogScaleAtEqualDistancesAndAllOnThePicture(t *testing.T) {
	var dots []element
	for _, e := range elements(t, sample().String()) {
		if e.name == "circle" {
			dots = append(dots, e)
		}
	}
	assert.Require(t, len(dots) == 7, "%d points, want 7", len(dots))
	var x []float64
	for _, d := range dots[:3] {
		x = append(x, number(t, d.attributes["cx"]))
	}
	assert.That(t, math.Abs((x[1]-x[0])-(x[2]-x[1])) <= 0.2 && x[1] > x[0], "100, 10k and 1M are at %v", x)
	for i, d := range dots {
		top := float64(chartTop)
		if i >= 3 {
			top += panelStep
		}
		if y := number(t, d.attributes["cy"]); y < top || y > top+panelHeight {
			t.Errorf("point %d is at height %v, outside of its panel, which begins at %v", i, y, top)
		}
	}
	if low, high := number(t, dots[2].attributes["cy"]), number(t, dots[1].attributes["cy"]); low <= high {
		t.Errorf("5 is at %v, and 40 at %v, which is not above it", low, high)
	}
}

func TestAxis_BeginsAtZeroUnlessValuesAreFarApart(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   string
	}{
		{[]float64{3, 17}, "0 5 10 15 20"},
		{[]float64{0, 0}, "0 5e-10 1e-09"},
		{[]float64{100, 390}, "0 100 200 300 400"},
		{[]float64{0.4, 300}, "0.1 1 10 100 1k"},
		{[]float64{0, 45_000}, "0 20k 40k 60k"},
		{nil, "0 5e-10 1e-09"},
	} {
		a, ticks := axisOf(c.values, 100, 0).rounded()
		var labels []string
		for _, tick := range ticks {
			labels = append(labels, short(tick))
		}
		assert.Equal(t, strings.Join(labels, " "), c.want, c.values)
		if a.at(a.low) != 100 || a.at(a.high) != 0 {
			t.Errorf("%v: from %v to %v", c.values, a.at(a.low), a.at(a.high))
		}
	}
	at := axisOf([]float64{7}, 0, 100).at(7)
	assert.That(t, at == 50, "a single size is at %v, want the middle", at)
}
