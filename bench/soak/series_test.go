package main

import (
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/caretaker-go/caretaker/internal/assert"
)

// line makes points a minute apart, with noise of a normal distribution.
func line(n int, at, slope, noise float64) (points []point) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		hours := float64(i) / 60
		points = append(points, point{hours, at + slope*hours + noise*random.NormFloat64()})
	}
	return points
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	assert.That(t, math.Abs(got-want) <= tolerance, "%s: %g, want %g", what, got, want)
}

func TestFit_FindsTheLine(t *testing.T) {
	got := fit(line(61, 10, 4, 0))
	near(t, "slope", got.slope, 4, 1e-9)
	near(t, "standard error", got.stdErr, 0, 1e-9)
	near(t, "mean", got.mean, 12, 1e-9)
}

func TestFit_HasTheStandardErrorOfTheTextbook(t *testing.T) {
	// Residuals are -0.4, 0.8, -0.4, 0: their squares sum to 0.96, sxx is 5, and no neighbours agree.
	got := fit([]point{{0, 0.6}, {1, 2.8}, {2, 2.6}, {3, 4}})
	near(t, "slope", got.slope, 1, 1e-9)
	near(t, "standard error", got.stdErr, math.Sqrt(0.96/2/5), 1e-9)
}

func TestFit_WavesSayLessThanNoise(t *testing.T) {
	var waves []point
	for i := range 60 {
		waves = append(waves, point{float64(i) / 60, 100 + 10*math.Sin(float64(i)/8)})
	}
	noise := line(60, 100, 0, 7)
	if slow, quick := fit(waves).stdErr, fit(noise).stdErr; slow < 2*quick {
		t.Errorf("standard errors of a slow wave and of noise of its size: %g and %g", slow, quick)
	}
}

func TestFit_FewPointsHaveNoSlope(t *testing.T) {
	for _, points := range [][]point{nil, {{1, 5}}, {{1, 5}, {2, 9}}, {{1, 5}, {1, 6}, {1, 7}}} {
		got := fit(points)
		assert.That(t, got.slope == 0 && !got.rises(), "%v: %+v", points, got)
	}
}

func TestMeans_LeaveOutTheWarmUpAndAreByWholeDays(t *testing.T) {
	points := []point{{0, 1000}, {1, 10}, {1.5, 20}, {2, 30}, {2.5, 50}, {4, 7}}
	got := means(points, 1, 1)
	want := []point{{1.25, 15}, {2.25, 40}, {4, 7}}
	assert.Require(t, len(got) == len(want), "%v, want %v", got, want)
	for i := range want {
		near(t, "hours", got[i].hours, want[i].hours, 1e-9)
		near(t, "value", got[i].value, want[i].value, 1e-9)
	}
}

func TestTrend_RisesOnlyIfItIsNeitherChanceNorLittle(t *testing.T) {
	for name, c := range map[string]struct {
		of             trend
		rises, tooMuch bool
	}{
		"a leak":                     {trend{n: 20, mean: 100, slope: 30, stdErr: 2, bound: 10}, true, true},
		"within the bound":           {trend{n: 20, mean: 100, slope: 5, stdErr: 1, bound: 10}, true, false},
		"less than two errors":       {trend{n: 20, mean: 100, slope: 30, stdErr: 16, bound: 10}, false, false},
		"less than 1 % of the mean":  {trend{n: 20, mean: 100, slope: 0.9, stdErr: 0.01, bound: 0.5}, false, false},
		"it falls":                   {trend{n: 20, mean: 100, slope: -30, stdErr: 1, bound: 10}, false, false},
		"too few points":             {trend{n: 4, mean: 100, slope: 30, stdErr: 1, bound: 10}, false, false},
		"from nothing, above bounds": {trend{n: 20, mean: 0, slope: 30, stdErr: 1, bound: 5}, true, true},
	} {
		if c.of.rises() != c.rises || c.of.tooMuch() != c.tooMuch {
			t.Errorf("%s: rises %t, too much %t", name, c.of.rises(), c.of.tooMuch())
		}
	}
}

func TestTrend_SaysNoOnlyIfTheSlopeIsCertainEnough(t *testing.T) {
	for want, of := range map[string]trend{
		"no":                    {n: 20, mean: 100, slope: 1, stdErr: 4, bound: 10},
		"cannot tell":           {n: 20, mean: 100, slope: 1, stdErr: 5, bound: 10},
		"yes, within the bound": {n: 20, mean: 100, slope: 9, stdErr: 2, bound: 10},
		"**yes, too much**":     {n: 20, mean: 100, slope: 11, stdErr: 2, bound: 10},
	} {
		assert.Equal(t, of.verdict(), want, of)
	}
}

func TestTrends_TheBoundIsAPartOfTheMeanOrTheFloor(t *testing.T) {
	var s samples
	for i := range 120 {
		at := time.Duration(i) * 30 * time.Second
		s.add("big", 5, at, 1000+200*at.Hours())
		s.add("small", 5, at, 1+2*at.Hours())
	}
	got := s.trends(options{time: time.Hour, day: time.Minute, bound: 10})
	near(t, "bound of the big one", got[0].bound, got[0].mean/10, 1e-9)
	near(t, "bound of the small one", got[1].bound, 5, 0)
	assert.That(t, got[0].tooMuch() && got[1].rises() && !got[1].tooMuch(), "%+v", got)
}

func TestFailure_NamesTheSeriesAndWhatIsLeft(t *testing.T) {
	leak := trend{name: "server: goroutines", n: 20, mean: 100, slope: 60, stdErr: 1, bound: 10}
	left := []leftover{{"shop", "items of orders", 3}}
	if err := failure([]trend{{name: "quiet", n: 20, mean: 5}}, nil, options{}, "d"); err != nil {
		t.Error(err)
	}
	err := failure([]trend{leak}, left, options{}, "d")
	for _, want := range []string{"server: goroutines rises by 60 an hour, 10 are allowed", "3 items of orders in shop", "samples.csv"} {
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%v, want %q", err, want)
	}
	if err := failure([]trend{leak}, nil, options{quick: true}, "d"); err != nil {
		t.Errorf("a quick look measures nothing: %v", err)
	}
}

func TestParseFigures_SumsOverLabelsAndByOutcome(t *testing.T) {
	f := parseFigures("# HELP runs of all\nruns{worker=\"a b\",outcome=\"failed\"} 2\n" +
		"runs{outcome=\"succeeded\",worker=\"c\"} 3.5e+1\ngo_goroutines 61\n")
	near(t, "all", f["runs"], 37, 0)
	near(t, "failed", f["runs/failed"], 2, 0)
	near(t, "without labels", f["go_goroutines"], 61, 0)
	near(t, "with those of another process", f.plus(f)["runs"], 74, 0)
}

func TestFollow_ReadsTheLogBetweenPiecesOfALineAboutACollection(t *testing.T) {
	s, serving := &server{}, make(chan struct{})
	s.follow(strings.NewReader("gc 1 @0.1s 2%: 0.1+0.2 ms clock, 4->5->3 MB, 4 MB goal\n"+
		`gc {"level":"INFO","msg":"serving","listen":"127.0.0.1:1"}`+"\n"+`{"level":"ERROR","msg":"no"}`+"\n"), io.Discard, serving)
	select {
	case <-serving:
	default:
		t.Error("it was not seen that the server serves")
	}
	assert.That(t, s.api == "127.0.0.1:1" && s.heap == 3 && s.errors == 1, "%q, %v MB, %v errors", s.api, s.heap, s.errors)
}
