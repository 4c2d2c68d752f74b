// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel"
	"github.com/yodel-rpc/yodel/docs"
	"github.com/yodel-rpc/yodel/inspect/fleet"
)

func (a *app) explainCommand() *cobra.Command {
	return command(local, &cobra.Command{
		Use:     "explain [ID]",
		Short:   "Say what the ID of an error means, what causes it, and how to fix it",
		Long:    "It needs no network. Without an ID it lists all IDs.",
		Example: "  yodel explain YDL1103",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listErrors()
			}
			return a.explain(args[0])
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var ids []string
			for _, s := range sections() {
				ids = append(ids, s.ID+"\t"+s.Title)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
	})
}

// A section is what docs/errors.md says about an ID.
type section struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	Text  string `json:"text"` // Markdown
}

var sectionHead = regexp.MustCompile(`(?m)^## ([A-Z]{3}\d{4}): (.*)$`)

// sections returns all sections in the order of the document.
func sections() []section {
	text := docs.Errors()
	heads := sectionHead.FindAllStringSubmatchIndex(text, -1)
	all := make([]section, len(heads))
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		if j := strings.Index(text[h[1]:end], "\n## "); j >= 0 {
			end = h[1] + j
		}
		all[i] = section{text[h[2]:h[3]], text[h[4]:h[5]], strings.TrimSpace(text[h[1]:end])}
	}
	return all
}

func (a *app) listErrors() error {
	all := sections()
	t := newTable("ID", "MEANING")
	for _, s := range all {
		t.add(s.ID, s.Title)
	}
	return a.show(all, t, func() []string {
		var ids []string
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		return ids
	})
}

func (a *app) explain(id string) error {
	id = strings.ToUpper(strings.Trim(id, "[] "))
	all := sections()
	if len(id) == 4 && strings.Trim(id, "0123456789") == "" {
		id = all[0].ID[:3] + id
	}
	i := slices.IndexFunc(all, func(s section) bool { return s.ID == id })
	if i < 0 {
		var ids []string
		for _, s := range all {
			ids = append(ids, s.ID)
		}
		f := faultf(exitUsage, "there is no error %q", id)
		if near := similar(id, ids); near != "" {
			f.addf("did you mean", "%s", near)
		}
		return f.with("all errors", "yodel explain")
	}
	s := all[i]
	return a.show(s, text(s.ID+"  "+s.Title+"\n\n"+plainText(s.Text)+"\n"), func() []string { return []string{s.ID} })
}

var (
	markdownLink = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
	emphasis     = regexp.MustCompile(`\*\*([^*]+)\*\*`)
)

// plainText returns Markdown as text for a terminal: without marks, wrapped at 100 columns.
func plainText(markdown string) string {
	s := markdownLink.ReplaceAllString(markdown, "$1")
	s = emphasis.ReplaceAllString(s, "$1")
	s = strings.ReplaceAll(s, "`", "")
	var out []string
	for line := range strings.Lines(s) {
		out = append(out, wrap(strings.TrimRight(line, "\n"), 100)...)
	}
	return strings.Join(out, "\n")
}

// wrap breaks a line at spaces. The lines of an item of a list are indented.
func wrap(line string, width int) []string {
	indent := ""
	if strings.HasPrefix(line, "- ") {
		indent = "  "
	}
	var lines []string
	current := ""
	for word := range strings.SplitSeq(line, " ") {
		switch {
		case current == "":
			current = word
		case len([]rune(current))+1+len([]rune(word)) > width:
			lines = append(lines, current)
			current = indent + word
		default:
			current += " " + word
		}
	}
	return append(lines, current)
}

// explainCall says where a call would go, from what the registry and the instances say now.
func (a *app) explainCall(ctx context.Context, t *target, service, method string, metadata yodel.Metadata, o *callOptions) error {
	f := fleet.New(t.source, &fleet.Options{Timeout: a.o.timeout, Client: t.client})
	defer f.Close()
	s, err := a.serviceAsCalled(ctx, f, t, service)
	if err != nil {
		return err
	}
	if _, err := findMethod(s, method); err != nil {
		return err
	}
	type stage struct {
		Name  string   `json:"name"`
		What  string   `json:"what"`
		Addrs []string `json:"instances"`
	}
	var stages []stage
	step := func(name, what string, keep func(*fleet.Instance) bool) {
		one := stage{Name: name, What: what, Addrs: []string{}}
		for _, in := range s.Instances {
			if keep(in) {
				one.Addrs = append(one.Addrs, in.Addr)
			}
		}
		stages = append(stages, one)
	}
	step("instances", "in the registry", func(*fleet.Instance) bool { return true })
	step("active", "not disabled, not draining", func(in *fleet.Instance) bool {
		return in.State != fleet.Inactive && in.State != fleet.Draining
	})
	gets := (*fleet.Instance).Gets
	step("healthy", "reachable, and not ejected by a client in the servers of the fleet that have Diagnostics", gets)
	if o.version != "" {
		gets = func(in *fleet.Instance) bool { return in.Gets() && in.Version == o.version }
		step("version", "of the version "+o.version, gets)
	}
	total := 0
	for _, in := range s.Instances {
		if gets(in) {
			total += max(in.Weight, 1)
		}
	}
	var b strings.Builder
	for i, st := range stages {
		if i > 0 {
			b.WriteString("  →  ")
		}
		fprintf(&b, "%s %d", st.Name, len(st.Addrs))
	}
	b.WriteString("\n")
	for _, in := range s.Instances {
		switch {
		case gets(in):
			fprintf(&b, "  %-21s %s  weight %d of %d\n", in.Addr, orDash(in.Version), max(in.Weight, 1), total)
		case in.Gets():
			fprintf(&b, "  %-21s %s  is of another version\n", in.Addr, orDash(in.Version))
		default:
			fprintf(&b, "  %-21s %s  %s: %s\n", in.Addr, orDash(in.Version), in.State, in.Why)
		}
	}
	for _, line := range a.ruleLines(ctx, t, service, method, metadata) {
		fprintf(&b, "  rule  %s\n", line)
	}
	return a.show(stages, text(b.String()), func() []string { return stages[len(stages)-1].Addrs })
}
