// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/yodel-rpc/yodel/inspect/fleet"
)

func (a *app) completionCommand() *cobra.Command {
	c := command(local, &cobra.Command{
		Use:       "completion bash | zsh | fish | powershell",
		Short:     "Print a script that completes commands, flags, and the names of services and methods",
		Example:   "  source <(yodel completion bash)",
		Args:      cobra.ExactArgs(1),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(a.out, true)
			case "zsh":
				return c.Root().GenZshCompletion(a.out)
			case "fish":
				return c.Root().GenFishCompletion(a.out, true)
			case "powershell":
				return c.Root().GenPowerShellCompletionWithDesc(a.out)
			}
			return faultf(exitUsage, "there is no completion for %q", args[0]).with("shells", "%s", strings.Join(c.ValidArgs, ", "))
		},
	})
	return c
}

// completing reads the fleet for completion, which must be quick and silent.
func (a *app) completing(f func(ctx context.Context, fl *fleet.Fleet) []string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	fl, _, done, err := a.fleet(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer done()
	names := f(ctx, fl)
	for i, name := range names {
		names[i] = block(name) // a tab separates a name from its description
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeService completes the name of a service.
func (a *app) completeService(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completing(func(ctx context.Context, f *fleet.Fleet) []string {
		names, _ := f.Services(ctx)
		return names
	})
}

// completeMethod completes the names of methods.
func (a *app) completeMethod(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completing(func(ctx context.Context, f *fleet.Fleet) []string {
		view, err := f.Read(ctx)
		if err != nil {
			return nil
		}
		var names []string
		for _, s := range view.Services {
			names = append(names, s.Name)
			for i := range s.Methods {
				names = append(names, shown(s.Methods[i].Name))
			}
		}
		slices.Sort(names)
		return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, prefix) })
	})
}

// completeInstance completes a service, and then an address of one of its instances.
func (a *app) completeInstance(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) != 1 {
		return a.completeService(c, args, prefix)
	}
	return a.completing(func(ctx context.Context, f *fleet.Fleet) []string {
		view, err := f.Read(ctx, args[0])
		if err != nil {
			return nil
		}
		var addrs []string
		for _, in := range view.Service(args[0]).Instances {
			addrs = append(addrs, in.Addr+"\t"+string(in.State))
		}
		return addrs
	})
}
