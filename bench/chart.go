// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Chart shows a figure of the closed loop by the number of callers.
type Chart struct {
	File, Title, Unit string

	of  figure
	log bool // the upward axis
}

var charts = []Chart{
	{File: "throughput.svg", Title: "Throughput", Unit: "thousand calls a second", of: func(r Result) float64 { return r.Rate / 1e3 }},
	{File: "latency-p50.svg", Title: "Latency, median", Unit: "milliseconds", of: func(r Result) float64 { return p50(r) / 1e3 }, log: true},
	{File: "latency-p99.svg", Title: "Latency, 99th percentile", Unit: "milliseconds", of: func(r Result) float64 { return p99(r) / 1e3 }, log: true},
	{File: "cpu.svg", Title: "Processor time of client and server", Unit: "microseconds a call", of: cpu, log: true},
}

// A line is a peer's in a chart.
type line struct {
	peer   PeerInfo
	points plotter.XYs
}

// lines are those of the peers that have at least two points.
func (r *Report) lines(c Chart) []line {
	var all []line
	for _, p := range r.Peers {
		l := line{peer: p}
		for _, n := range callerCounts {
			if s, ok := r.spread(closedName(n), p.Key, c.of); ok && s.Median > 0 {
				l.points = append(l.points, plotter.XY{X: float64(n), Y: s.Median})
			}
		}
		if len(l.points) > 1 {
			all = append(all, l)
		}
	}
	return all
}

// Sizes of a chart. The names of the peers stand at the right, outside of the axes.
const (
	chartWidth  = 8 * vg.Inch
	chartHeight = 5 * vg.Inch
	nameMargin  = 1.5 * vg.Inch
	nameHeight  = 11 * vg.Inch / 72
)

// writeSVG draws a chart. It has a white background, so that it can be read on a dark page too.
func (r *Report) writeSVG(out io.Writer, c Chart) error {
	canvas := vgsvg.New(chartWidth, chartHeight)
	if err := r.draw(draw.New(canvas), c); err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	// Hardly anybody has these fonts; the widths of Arial and Helvetica are the same.
	_, err := out.Write(bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")))
	return err
}

func (r *Report) draw(whole draw.Canvas, c Chart) error {
	lines := r.lines(c)
	p := newPlot(c)
	for _, l := range inFront(lines) {
		drawn, dots, err := plotter.NewLinePoints(l.points)
		if err != nil {
			return err
		}
		drawn.LineStyle = r.style(l.peer)
		dots.GlyphStyle = draw.GlyphStyle{Color: drawn.Color, Radius: drawn.Width * 1.3, Shape: draw.CircleGlyph{}}
		p.Add(drawn, dots)
	}
	whole.SetColor(color.White)
	whole.Fill(whole.Path())
	axes := draw.Crop(whole, 0, -nameMargin, 0, 0)
	p.Draw(axes)
	r.writeNames(whole, p, p.DataCanvas(axes), lines)
	return nil
}

// newPlot is a chart without its lines.
func newPlot(c Chart) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: style.Font.Size}
	}
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, "callers", c.Unit
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, callerTicks{}
	if c.log {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plainLogTicks{}
	} else {
		p.Y.Min = 0
	}
	p.Add(plotter.NewGrid())
	return p
}

// inFront sorts the lines so that yodel is drawn last, over the others.
func inFront(lines []line) []line {
	sorted := slices.Clone(lines)
	slices.SortStableFunc(sorted, func(a, b line) int {
		return cmp.Compare(btoi(a.peer.Kind == kindYodel), btoi(b.peer.Kind == kindYodel))
	})
	return sorted
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// writeNames writes each peer's name beside the end of its line, as near as the other names allow.
func (r *Report) writeNames(whole draw.Canvas, p *plot.Plot, axes draw.Canvas, lines []line) {
	if len(lines) == 0 {
		return
	}
	toX, toY := p.Transforms(&axes)
	end := func(l line) vg.Point {
		last := l.points[len(l.points)-1]
		return vg.Point{X: toX(last.X), Y: toY(last.Y)}
	}
	sorted := slices.Clone(lines)
	slices.SortStableFunc(sorted, func(a, b line) int { return cmp.Compare(end(a).Y, end(b).Y) })
	var wanted []vg.Length
	for _, l := range sorted {
		wanted = append(wanted, end(l).Y)
	}
	left := axes.Max.X + 18
	for i, y := range spreadOut(wanted, nameHeight, whole.Min.Y+nameHeight, whole.Max.Y-nameHeight) {
		l, style := sorted[i], r.style(sorted[i].peer)
		thin := draw.LineStyle{Color: style.Color, Width: vg.Points(0.5)}
		whole.StrokeLines(thin, []vg.Point{end(l), {X: left - 3, Y: y}})
		face := font.Font{Typeface: "Liberation", Variant: "Sans", Size: 9}
		if l.peer.Kind == kindYodel {
			face.Weight, face.Size = 3, 11 // bold
		}
		whole.FillText(text.Style{Color: style.Color, Font: face, YAlign: text.YCenter, Handler: plot.DefaultTextHandler},
			vg.Point{X: left, Y: y}, l.peer.Name)
	}
}

// spreadOut moves ascending positions as little as it can so that they are gap apart and within
// bounds. When there are too many for that, they pass the upper bound.
func spreadOut(wanted []vg.Length, gap, low, high vg.Length) []vg.Length {
	placed := slices.Clone(wanted)
	for i := len(placed) - 1; i >= 0; i-- { // from above: below the bound, and below the one before
		placed[i] = min(placed[i], high-vg.Length(len(placed)-1-i)*gap)
		if i < len(placed)-1 {
			placed[i] = min(placed[i], placed[i+1]-gap)
		}
	}
	for i := range placed { // from below
		placed[i] = max(placed[i], low+vg.Length(i)*gap)
		if i > 0 {
			placed[i] = max(placed[i], placed[i-1]+gap)
		}
	}
	return placed
}

// palette has colours that differ in hue or lightness. None is yodel's red or the ceiling's black.
var palette = []color.RGBA{
	{0x1f, 0x77, 0xb4, 255}, {0xff, 0x7f, 0x0e, 255}, {0x2c, 0xa0, 0x2c, 255}, {0x94, 0x67, 0xbd, 255},
	{0x8c, 0x56, 0x4b, 255}, {0xe3, 0x77, 0xc2, 255}, {0x17, 0xbe, 0xcf, 255}, {0xbc, 0xbd, 0x22, 255},
	{0x00, 0x49, 0x49, 255}, {0x7f, 0x7f, 0x7f, 255}, {0x49, 0x00, 0x92, 255}, {0xb6, 0x6d, 0x00, 255},
	{0x6d, 0xb6, 0x6d, 255}, {0x3b, 0x5b, 0xdb, 255}, {0xc9, 0xa2, 0x27, 255},
}

// style is how a peer is drawn, in all charts alike: yodel thick, the ceiling and those on the JVM
// dashed.
func (r *Report) style(p PeerInfo) draw.LineStyle {
	switch p.Kind {
	case kindYodel:
		return draw.LineStyle{Color: color.RGBA{0xd6, 0x1f, 0x26, 255}, Width: vg.Points(3)}
	case kindCeiling:
		return draw.LineStyle{Color: color.RGBA{0x20, 0x20, 0x20, 255}, Width: vg.Points(1.5), Dashes: []vg.Length{6, 4}}
	}
	i := slices.IndexFunc(r.Peers, func(other PeerInfo) bool { return other.Key == p.Key })
	style := draw.LineStyle{Color: palette[max(i, 0)%len(palette)], Width: vg.Points(1.25)}
	if p.Kind == kindJava {
		style.Dashes = []vg.Length{2, 2}
	}
	return style
}

// callerTicks marks the numbers of callers that are measured.
type callerTicks struct{}

func (callerTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for _, n := range callerCounts {
		if v := float64(n); v >= low && v <= high {
			ticks = append(ticks, plot.Tick{Value: v, Label: strconv.Itoa(n)})
		}
	}
	return ticks
}

// plainLogTicks writes 0.1, 1 and 10 instead of powers, and has ticks without labels in between.
type plainLogTicks struct{}

func (plainLogTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for power := math.Floor(math.Log10(low)); power <= math.Log10(high); power++ {
		for digit := 1.0; digit < 10; digit++ {
			v := digit * math.Pow(10, power)
			if v < low || v > high {
				continue
			}
			label := ""
			if digit == 1 || digit == 2 || digit == 5 {
				label = strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64)
			}
			ticks = append(ticks, plot.Tick{Value: v, Label: label})
		}
	}
	return ticks
}
