// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// A profile is a context: a fleet, and how to reach it.
type profile struct {
	Registry string   `json:"registry,omitempty"`
	At       []string `json:"at,omitempty"`
	TLS      bool     `json:"tls,omitempty"`
	CA       string   `json:"ca,omitempty"`
	Cert     string   `json:"cert,omitempty"`
	Key      string   `json:"key,omitempty"`
	// Guarded contexts ask for a confirmation before a change.
	Guarded bool `json:"guarded,omitempty"`

	name string // "" if it is no context of contexts.json
}

// absolute makes the path in the URL of a registry and the paths of files absolute. They are
// relative to dir.
func absolute(dir string, registry *string, files ...*string) {
	if folder, ok := strings.CutPrefix(*registry, "file:"); ok && !strings.HasPrefix(folder, "//") && !filepath.IsAbs(folder) {
		*registry = "file:" + filepath.Join(dir, folder)
	}
	for _, file := range files {
		if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(dir, *file)
		}
	}
}

// contexts is the content of contexts.json.
type contexts struct {
	Current  string             `json:"current,omitempty"`
	Previous string             `json:"previous,omitempty"`
	Contexts map[string]profile `json:"contexts"`
}

func (c *contexts) unknown(name string) error {
	names := slices.Sorted(maps.Keys(c.Contexts))
	f := faultf(exitUsage, "there is no context %q", name)
	if near := similar(name, names); near != "" {
		f.addf("did you mean", "%s", near)
	}
	if len(names) == 0 {
		return f.with("next", "yodel ctx add %s --registry …", name)
	}
	return f.with("contexts", "%s", strings.Join(names, ", "))
}

// contextsFile returns the path of the file with the contexts.
func (a *app) contextsFile() (string, error) {
	folder := a.env("XDG_CONFIG_HOME")
	if folder == "" {
		var err error
		if folder, err = os.UserConfigDir(); err != nil {
			return "", err
		}
	}
	return filepath.Join(folder, "yodel", "contexts.json"), nil
}

func (a *app) loadContexts() (*contexts, error) {
	known := &contexts{Contexts: make(map[string]profile)}
	path, err := a.contextsFile()
	if err != nil {
		return known, nil //nolint:nilerr // without a home there are no contexts
	}
	text, err := os.ReadFile(path) //nolint:gosec // the user's own file
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err == nil {
		err = json.Unmarshal(text, known)
	}
	if err != nil {
		return nil, faultf(exitUsage, "the contexts cannot be read: %v", err).with("file", "%s", path)
	}
	if known.Contexts == nil { // the file has null
		known.Contexts = make(map[string]profile)
	}
	return known, nil
}

// saveContexts replaces the file as a whole. Only the user may read it, because a URL may contain a
// password.
func (a *app) saveContexts(known *contexts) error {
	path, err := a.contextsFile()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(known, "", "\t")
	if err != nil {
		return err
	}
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temporary := path + ".new"
	if err = os.WriteFile(temporary, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

func (a *app) ctxCommand() *cobra.Command {
	c := command(local, &cobra.Command{
		Use:   "ctx [NAME | -]",
		Short: "List contexts, or choose one",
		Long: "A context is a name for a fleet and for how to reach it. Contexts are in $XDG_CONFIG_HOME/yodel/contexts.json.\n" +
			"The variable YODEL_CONTEXT and the flag --context choose one for a single command. The name - is the previous context.",
		Example: "  yodel ctx add prod --registry etcd://10.0.0.1:2379 --guarded\n  yodel ctx prod\n  yodel ctx -",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.listContexts()
			}
			return a.useContext(args[0])
		},
		ValidArgsFunction: a.contextNames,
	})
	var guarded bool
	add := command(local, &cobra.Command{
		Use:     "add NAME",
		Short:   "Add or replace a context",
		Long:    "The flags --registry or --at, and those for TLS, are those of the context.",
		Example: "  yodel ctx add prod --registry etcd://10.0.0.1:2379 --guarded",
		Args:    cobra.ExactArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return a.addContext(args[0], guarded) },
	})
	add.Flags().BoolVar(&guarded, "guarded", false, "ask for a confirmation before a change in this context")
	c.AddCommand(add, command(local, &cobra.Command{
		Use: "use NAME", Short: "Choose a context", Args: cobra.ExactArgs(1), ValidArgsFunction: a.contextNames,
		RunE: func(_ *cobra.Command, args []string) error { return a.useContext(args[0]) },
	}), command(local, &cobra.Command{
		Use: "rm NAME", Short: "Remove a context", Args: cobra.ExactArgs(1), ValidArgsFunction: a.contextNames,
		RunE: func(_ *cobra.Command, args []string) error { return a.removeContext(args[0]) },
	}))
	return c
}

func (a *app) contextNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	known, err := a.loadContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(known.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) listContexts() error {
	known, err := a.loadContexts()
	if err != nil {
		return err
	}
	type row struct {
		Name    string `json:"name"`
		Current bool   `json:"current"`
		profile
	}
	rows := []row{}
	t := newTable("", "NAME", "FLEET", "GUARDED")
	for _, name := range slices.Sorted(maps.Keys(known.Contexts)) {
		p := known.Contexts[name]
		p.Registry = withoutSecrets(p.Registry)
		rows = append(rows, row{name, name == known.Current, p})
		mark, guarded := "", "-"
		if name == known.Current {
			mark = "*"
		}
		if p.Guarded {
			guarded = "yes"
		}
		t.add(mark, name, p.Registry+strings.Join(p.At, ","), guarded)
	}
	if len(rows) == 0 {
		a.sayf("There are no contexts. Add one: yodel ctx add NAME --registry URL\n")
	}
	return a.show(rows, t, func() []string { return slices.Sorted(maps.Keys(known.Contexts)) })
}

// withoutSecrets returns the URL of a registry without the password.
func withoutSecrets(text string) string {
	p, err := parsePlace(text)
	switch {
	case text == "":
		return ""
	case err != nil:
		scheme, _, _ := strings.Cut(text, ":")
		return scheme + ":…"
	}
	return p.String()
}

func (a *app) useContext(name string) error {
	known, err := a.loadContexts()
	if err != nil {
		return err
	}
	if name == "-" {
		if known.Previous == "" {
			return faultf(exitUsage, "there is no previous context")
		}
		name = known.Previous
	}
	if _, ok := known.Contexts[name]; !ok {
		return known.unknown(name)
	}
	if name != known.Current {
		known.Previous, known.Current = known.Current, name
	}
	if err := a.saveContexts(known); err != nil {
		return err
	}
	a.sayf("The context is %s.\n", name)
	return nil
}

func (a *app) addContext(name string, guarded bool) error {
	if a.o.registry == "" && len(a.o.at) == 0 {
		return faultf(exitUsage, "a context needs a fleet").with("try", "yodel ctx add %s --registry etcd://HOST:PORT", name)
	}
	if name == "-" || name == "" || strings.ContainsAny(name, " /") {
		return faultf(exitUsage, "%q cannot be the name of a context", name)
	}
	if a.o.registry != "" {
		if _, err := parsePlace(a.o.registry); err != nil {
			return err
		}
	}
	known, err := a.loadContexts()
	if err != nil {
		return err
	}
	p := profile{Registry: a.o.registry, At: a.o.at, TLS: a.o.tls, CA: a.o.ca, Cert: a.o.cert, Key: a.o.key, Guarded: guarded}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	absolute(dir, &p.Registry, &p.CA, &p.Cert, &p.Key)
	known.Contexts[name] = p
	if known.Current == "" {
		known.Current = name
	}
	return a.saveContexts(known)
}

func (a *app) removeContext(name string) error {
	known, err := a.loadContexts()
	if err != nil {
		return err
	}
	if _, ok := known.Contexts[name]; !ok {
		return known.unknown(name)
	}
	delete(known.Contexts, name)
	if known.Current == name {
		known.Current = ""
	}
	if known.Previous == name {
		known.Previous = ""
	}
	return a.saveContexts(known)
}
