// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/output"
)

// rootsName is the name of the secret with the roots that a proxy trusts in the mesh.
const rootsName = "ROOTCA"

func newRootsCommand(cfg Config) *cobra.Command {
	f := adminFlags{proxyConfigFlags{askFlags: askFlags{cfg: cfg}}}
	cmd := &cobra.Command{
		Use:     "rootca-compare PROXY PROXY",
		Aliases: []string{"rc"},
		Short:   "Compare the roots that two Envoys trust",
		Long: `Compare the roots of the mesh, the secret ROOTCA, of two Envoys. Each PROXY may be
HOST:PORT of an Envoy's admin port instead. The order of the roots makes no difference.
` + reachLong + `

The exit code is 0 if both have the same roots, else 1.`,
		Example: "  outrigger proxy rootca-compare frontend catalog\n  outrigger proxy rc frontend 127.1.0.3:15000 -o json",
		RunE:    func(cmd *cobra.Command, args []string) error { return f.compareRoots(cmd, args) },
	}
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of a proxy that is named without one")
	f.addControls(cmd)
	f.complete(cmd, completeProxies(&f.askFlags, 2))
	output.Add(cmd, &f.output, "short")
	return cmd
}

// comparedRoots is the answer of rootca-compare.
type comparedRoots struct {
	Equal bool   `json:"equal"`
	Roots []root `json:"roots"`
}

// root is a root, and which proxies have it.
type root struct {
	secret
	In []string `json:"in"`
}

// compareRoots prints whether two Envoys have the same roots.
func (f *adminFlags) compareRoots(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return f.cfg.Exit(exitUsage, errors.New("write two proxies, as in frontend.shop catalog.shop, or HOST:PORT of their Envoys"))
	}
	answer := comparedRoots{Equal: true, Roots: []root{}}
	for _, name := range args {
		list, err := f.rootsOf(cmd, name)
		if err != nil {
			return err
		}
		for _, s := range list {
			i := slices.IndexFunc(answer.Roots, func(r root) bool { return r.secret == s })
			if i < 0 {
				i = len(answer.Roots)
				answer.Roots = append(answer.Roots, root{secret: s})
			}
			if !slices.Contains(answer.Roots[i].In, name) {
				answer.Roots[i].In = append(answer.Roots[i].In, name)
			}
		}
	}
	shared := 0
	for _, r := range answer.Roots {
		if len(r.In) == 2 || args[0] == args[1] {
			shared++
		}
	}
	answer.Equal = shared == len(answer.Roots)
	err := view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}.roots(answer, args, shared)
	if err == nil && !answer.Equal {
		err = f.cfg.Exit(exitFailed, nil)
	}
	return err
}

// rootsOf returns the roots of an Envoy.
func (f *adminFlags) rootsOf(cmd *cobra.Command, name string) (list []secret, err error) {
	of, args := *f, []string{name}
	if _, _, err := net.SplitHostPort(name); err == nil {
		of.admin, args = name, nil
	}
	d := &adminv3.SecretsConfigDump{}
	if err := of.dump(cmd, args, "SecretsConfigDump", d); err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(secretsOf(d, time.Now()), func(s secret) bool { return s.Name != rootsName || s.Fingerprint == "" })
	if len(list) == 0 {
		return nil, f.fail(fmt.Errorf("%s has no certificate in the secret %s: outrigger proxy secrets %[1]s lists what it has", name, rootsName))
	}
	return list, nil
}

// roots prints which proxies have which roots.
func (v view) roots(answer comparedRoots, names []string, shared int) error {
	if !v.flags.forReaders() {
		return v.flags.write(v.out, answer)
	}
	rows := [][]string{{"SERIAL NUMBER", "NOT AFTER", "SHA-256", "IN"}}
	for _, r := range answer.Roots {
		in := "both"
		if len(r.In) < 2 && !answer.Equal {
			in = r.In[0]
		}
		rows = append(rows, []string{r.Serial, r.NotAfter.Format(time.RFC3339), r.Fingerprint, in})
	}
	if _, err := v.columns(rows, "SHA-256"); err != nil {
		return err
	}
	switch {
	case answer.Equal:
		v.say("\n%s and %s have the same roots.\n", names[0], names[1])
	case shared > 0:
		v.say("\n%s and %s have different roots, and %s in common.\n", names[0], names[1], count(shared, "root", "roots"))
	default:
		v.say("\n%s and %s have no root in common: neither accepts certificates of the other.\n", names[0], names[1])
	}
	return nil
}
