// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// A helpTopic is a command as help --json describes it.
type helpTopic struct {
	Name     string      `json:"name"` // with those of the commands above it
	Use      string      `json:"use"`
	Short    string      `json:"short"`
	Long     string      `json:"long,omitempty"`
	Example  string      `json:"example,omitempty"`
	Tag      string      `json:"tag,omitempty"` // read, write or local
	Aliases  []string    `json:"aliases,omitempty"`
	Flags    []helpFlag  `json:"flags,omitempty"`
	Commands []helpTopic `json:"commands,omitempty"`
}

type helpFlag struct {
	Name    string `json:"name"`
	Short   string `json:"short,omitempty"`
	Type    string `json:"type"`
	Default string `json:"default,omitempty"`
	Usage   string `json:"usage"`
}

func (a *app) helpCommand() *cobra.Command {
	asJSON := false
	c := command(local, &cobra.Command{
		Use:     "help [COMMAND…]",
		Short:   "Explain a command",
		Long:    "With --json or -o json, it prints the commands and their flags as a tree, for programs.",
		Example: "  yodel help bench\n  yodel help --json",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			root := c.Root()
			of, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 || of == nil {
				return unknownCommand(root, strings.Join(args, " "))
			}
			if !asJSON && a.o.output == "table" {
				of.InitDefaultHelpFlag()
				return of.Help()
			}
			if asJSON {
				a.o.output = "json"
			}
			return a.show(topicOf(of), text(""), func() []string {
				var names []string
				for _, sub := range of.Commands() {
					names = append(names, sub.Name())
				}
				return names
			})
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if of, _, err := c.Root().Find(args); err == nil {
				for _, sub := range of.Commands() {
					names = append(names, sub.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	})
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// topicOf describes a command and those below it.
func topicOf(c *cobra.Command) helpTopic {
	t := helpTopic{
		Name: c.CommandPath(), Use: c.UseLine(), Short: c.Short, Long: c.Long, Example: c.Example, Tag: c.Annotations["tag"], Aliases: c.Aliases,
	}
	c.NonInheritedFlags().VisitAll(func(f *flagOf) {
		if f.Name != "help" {
			t.Flags = append(t.Flags, helpFlag{f.Name, f.Shorthand, f.Value.Type(), f.DefValue, f.Usage})
		}
	})
	for _, sub := range c.Commands() {
		if !sub.Hidden {
			t.Commands = append(t.Commands, topicOf(sub))
		}
	}
	return t
}

// cheatCommand prints the examples of all commands.
func (a *app) cheatCommand() *cobra.Command {
	return command(local, &cobra.Command{
		Use:   "cheat [COMMAND…]",
		Short: "Print examples of all commands, or of one",
		RunE: func(c *cobra.Command, args []string) error {
			of, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(c.Root(), strings.Join(args, " "))
			}
			sheet := sheetOf(of)
			var b strings.Builder
			for _, of := range sheet {
				fmt.Fprintf(&b, "# %s\n%s\n\n", of.Short, strings.Join(of.Lines, "\n"))
			}
			return a.show(sheet, text(strings.TrimSuffix(b.String(), "\n")), func() (lines []string) {
				for _, of := range sheet {
					lines = append(lines, of.Lines...)
				}
				return lines
			})
		},
		Example: "  yodel cheat\n  yodel cheat rule",
		Args:    cobra.ArbitraryArgs,
	})
}

// examples is the examples of a command, a line each.
type examples struct {
	Name  string   `json:"name"`
	Short string   `json:"short"`
	Lines []string `json:"lines"`
}

// sheetOf returns the examples of a command and of those below it.
func sheetOf(c *cobra.Command) (sheet []examples) {
	if c.Example != "" {
		sheet = []examples{{Name: c.CommandPath(), Short: c.Short}}
		for line := range strings.Lines(c.Example) {
			sheet[0].Lines = append(sheet[0].Lines, strings.TrimSpace(line))
		}
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "cheat" {
			sheet = append(sheet, sheetOf(sub)...)
		}
	}
	return sheet
}
