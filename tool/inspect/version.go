// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/collateral"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// meshVersions is the answer to version, with the field names of istioctl.
type meshVersions struct {
	Client    collateral.BuildInfo `json:"clientVersion"`
	Mesh      []controlVersion     `json:"meshVersion,omitempty"`
	DataPlane []proxyVersion       `json:"dataPlaneVersion,omitempty"`
}

type controlVersion struct {
	Component string
	Address   string
	Info      struct {
		Version string `json:"version"`
	}
}

type proxyVersion struct {
	ID           string
	IstioVersion string // of the agent
	EnvoyVersion string
}

// NewVersion returns the command that prints the versions of this program, which has the given one, of
// the control planes and of the proxies.
func NewVersion(cfg Config, version string) *cobra.Command {
	f := askFlags{cfg: cfg}
	var remote, short bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and of a mesh",
		Long: `Print the versions of this program, of the control planes, and of the agents and
Envoys that are connected to them. Without a control plane the command fails only if
--control names one.`,
		Example: "  outrigger version\n  outrigger version --remote=false\n  outrigger version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := meshVersions{Client: collateral.ThisBuild(version)}
			var failed error
			if remote {
				failed = f.askVersions(cmd, &v)
			}
			if err := f.printVersions(cmd, v, remote, short); err != nil {
				return err
			}
			return failed
		},
	}
	f.addAsked(cmd)
	cmd.Flags().BoolVar(&remote, "remote", true, "ask the control planes, too")
	cmd.Flags().BoolVarP(&short, "short", "s", true, "print the number of this program only, not how it was built")
	return cmd
}

// askVersions adds the versions of control planes and of their proxies. Without a control plane it prints
// why there are none, which is an error if the user names it.
func (f *askFlags) askVersions(cmd *cobra.Command, v *meshVersions) error {
	addresses, err := f.addresses()
	if err != nil {
		if len(f.controls) > 0 {
			return err
		}
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "the versions of the mesh are not known: %v\n", err) // the terminal may be closed
		return nil
	}
	answers := ask[report.Replica](cmd.Context(), addresses, question{path: "proxies"}, f.timeout)
	for _, a := range answers {
		if a.err != nil {
			continue
		}
		c := controlVersion{Component: oneLine(a.value.Name), Address: a.address}
		c.Info.Version = knownVersion(a.value.Version)
		v.Mesh = append(v.Mesh, c)
		for _, p := range a.value.Proxies {
			v.DataPlane = append(v.DataPlane, proxyVersion{oneLine(p.Name), knownVersion(p.Agent), knownVersion(p.Envoy)})
		}
	}
	if len(f.controls) == 0 && len(v.Mesh) == 0 {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "the versions of the mesh are not known: control plane %s: %v\n", answers[0].address, answers[0].err) // see above
		return nil
	}
	if f.complain(cmd, answers) > 0 && len(f.controls) > 0 {
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// printVersions prints versions, those of a mesh if it was asked.
func (f *askFlags) printVersions(cmd *cobra.Command, v meshVersions, remote, short bool) error {
	if !f.forReaders() {
		return f.write(cmd.OutOrStdout(), v)
	}
	client := v.Client.Version
	if !short {
		client = v.Client.Long()
	}
	lines := []string{"client version: " + client}
	if remote && len(v.Mesh) > 0 {
		lines = append(lines, "control plane version: "+tally(v.Mesh, func(c controlVersion) string { return c.Info.Version }, "replica", "replicas"),
			"data plane version: "+tally(v.DataPlane, func(p proxyVersion) string { return p.IstioVersion }, "proxy", "proxies"),
			"Envoy version: "+tally(v.DataPlane, func(p proxyVersion) string { return p.EnvoyVersion }, "proxy", "proxies"))
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(lines, "\n"))
	return err
}

// tally returns the versions in a list, each with the number of those that have it.
func tally[T any](list []T, version func(T) string, one, many string) string {
	n := map[string]int{}
	for _, e := range list {
		n[version(e)]++
	}
	var parts []string
	for _, v := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s (%s)", v, count(n[v], one, many)))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// knownVersion returns a version that a peer reports, "unknown" if it reports none.
func knownVersion(version string) string {
	if version = output.Visible(version); version == "" {
		return "unknown"
	}
	return version
}
