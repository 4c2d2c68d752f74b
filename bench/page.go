// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

//go:embed page.md.tmpl
var pageText string

// A page is what the template is filled with.
type page struct {
	*Report

	Here     string // the way from the page to this folder
	Wires    bool   // every scenario compares servers of another framework's client
	Actors   bool   // every scenario is about actors
	Judged   bool   // at least one of the verdicts is measured
	Verdicts []Verdict
	Charts   []Chart
	Tables   []pageTable
	Failures []string
}

// A pageTable is a scenario's.
type pageTable struct {
	Scenario

	Rows   []row
	Absent []string
}

// writePage writes a page and its charts into a folder.
func (r *Report) writePage(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	here, err := wayHere(dir)
	if err != nil {
		return err
	}
	p := page{Report: r, Here: here, Verdicts: r.verdicts(), Failures: r.failures()}
	p.Wires = !slices.ContainsFunc(r.Scenarios, func(s Scenario) bool { return s.Client == "" })
	p.Actors = !slices.ContainsFunc(r.Scenarios, func(s Scenario) bool { return !slices.Contains(s.Variants, yodelActors) })
	p.Verdicts = slices.DeleteFunc(p.Verdicts, func(v Verdict) bool { return p.Actors != (v.Number >= actorTarget) })
	p.Judged = slices.ContainsFunc(p.Verdicts, func(v Verdict) bool { return v.Measured })
	for _, s := range r.Scenarios {
		if rows := r.rows(s.Name); len(rows) > 0 {
			p.Tables = append(p.Tables, pageTable{s, rows, r.absent(s)})
		}
	}
	for _, c := range charts {
		if len(r.lines(c)) == 0 {
			continue
		}
		p.Charts = append(p.Charts, c)
		if err := writeFile(filepath.Join(dir, c.File), func(out io.Writer) error { return r.writeSVG(out, c) }); err != nil {
			return err
		}
	}
	t, err := template.New("page").Funcs(pageFuncs).Parse(pageText)
	if err != nil {
		return err
	}
	return errors.Join(writeFile(filepath.Join(dir, "README.md"), func(out io.Writer) error { return t.Execute(out, p) }))
}

// wayHere returns the way from a folder to the one that the suite runs in.
func wayHere(dir string) (string, error) {
	from, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	to, err := filepath.Abs(".")
	if err != nil {
		return "", err
	}
	way, err := filepath.Rel(from, to)
	return filepath.ToSlash(way), err
}

// pageFuncs write numbers as the tables of the terminal do.
var pageFuncs = template.FuncMap{
	"amount": amount, "us": microseconds, "times": times, "share": share, "digits": digits, "two": two, "day": day,
	"two6":   func(a, b float64) string { return two(a*1e6, b*1e6) },
	"mib":    func(a, b float64) string { return two(a/(1<<20), b/(1<<20)) },
	"cell":   func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "|", "\\|"), "\n", " ") },
	"range_": func(s Spread) string { return amount(s.Min) + "–" + amount(s.Max) },
	"name": func(p PeerInfo) string {
		if p.Kind == kindYodel {
			return "**" + p.Name + "**"
		}
		return p.Name
	},
	"bandwidth": func(s Scenario, w row) string {
		switch beside := s.Load.Beside; {
		case beside.Callers > 0:
			return fmt.Sprintf("beside %s MB/s each way", digits(w.Median.Beside*float64(beside.Size)/1e6))
		case s.Load.Work == "echo" && s.Load.Size >= 1<<16:
			return fmt.Sprintf("%s MB/s each way", digits(w.Rate.Median*float64(s.Load.Size)/1e6))
		default:
			return ""
		}
	},
}
