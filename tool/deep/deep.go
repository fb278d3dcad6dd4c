// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package deep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/controlplane/xds"
	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	// maxValidated is how many different configurations an Envoy validates.
	maxValidated = 50
	// maxProxies is how many proxies configurations are built for.
	maxProxies = 1000
	// maxValidation is how long Envoy may take to validate one configuration.
	maxValidation = 2 * time.Minute
	// maxText is how much of what Envoy says is kept, in bytes.
	maxText = 4096
)

// Result is what an Envoy says about the proxies of a mesh.
type Result struct {
	// Proxies is the number of proxies, and Configurations that of the different ones they have.
	Proxies        int       `json:"proxies"`
	Configurations int       `json:"configurations"`
	Refused        []Refusal `json:"refused,omitempty"`
	// Left is the number of proxies that were not looked at, because of the limits.
	Left int `json:"not_validated,omitempty"`
	// Problems are those of patches, which have no effect.
	Problems []model.Problem `json:"-"`
}

// Refusal is a configuration that Envoy refuses.
type Refusal struct {
	Proxy  string `json:"proxy"`   // one that has it
	Alike  int    `json:"proxies"` // the number of them
	Reason string `json:"reason"`  // Envoy's words
}

// Check validates what the proxies of an input would have with the Envoy at a path.
func Check(ctx context.Context, binary string, in analyze.Input) (Result, error) {
	version, err := envoy.CheckVersion(ctx, binary, true) // it serves nothing
	if err != nil {
		return Result{}, err
	}
	var out Result
	g, index, known := generate.New(generate.Config{}), map[string]int{}, map[string]bool{}
	var validated []Refusal
	hit := map[string]bool{}
	proxies := in.Proxies()
	if len(proxies) > maxProxies {
		out.Left, proxies = len(proxies)-maxProxies, proxies[:maxProxies]
	}
	for _, p := range proxies {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		p.Envoy = fmt.Sprintf("%d.%d.%d", version.Major, version.Minor, version.Patch)
		sets := map[string]*xds.Set{}
		for _, typeURL := range append([]string{xds.TypeExtension}, xds.Types...) {
			sets[typeURL] = g.Generate(in.Mesh, p, typeURL)
			for _, problem := range sets[typeURL].Problems {
				if text := problem.String(); problem.Object.Kind == model.EnvoyFilter && !known[text] {
					known[text] = true
					out.Problems = append(out.Problems, problem)
				}
			}
		}
		for _, typeURL := range append([]string{xds.TypeExtension, xds.TypeBootstrap}, xds.Types...) {
			for _, h := range g.Hits(in.Mesh, p, typeURL) {
				hit[h.Patch.Filter.Config.Key.String()+h.Patch.At()] = true
			}
		}
		config, err := static(func(typeURL string) *xds.Set { return sets[typeURL] })
		if err != nil {
			return out, fmt.Errorf("the configuration of %s: %w", p.ID, err)
		}
		i, ok := index[string(config)]
		if !ok {
			if len(index) == maxValidated {
				out.Left++
				continue
			}
			reason, err := Envoy(ctx, binary, config)
			if err != nil {
				return out, fmt.Errorf("validate the configuration of %s: %w", p.ID, err)
			}
			i = len(validated)
			index[string(config)], validated = i, append(validated, Refusal{Proxy: p.ID, Reason: reason})
		}
		validated[i].Alike++
		out.Proxies++
	}
	out.Problems = append(out.Problems, idle(in, hit, out.Problems, len(proxies))...)
	out.Configurations = len(validated)
	out.Refused = slices.DeleteFunc(validated, func(r Refusal) bool { return r.Reason == "" })
	return out, nil
}

// idle returns warnings about the patches that changed nothing, so that no Envoy has seen them, without
// those that have a problem.
func idle(in analyze.Input, hit map[string]bool, known []model.Problem, proxies int) (out []model.Problem) {
	for _, obj := range in.Objects {
		spec, ok := obj.Spec.(*networkingv1alpha3.EnvoyFilter)
		if !ok {
			continue
		}
		for i, p := range spec.GetConfigPatches() {
			at := field.Index("spec.configPatches", i)
			if hit[obj.Key.String()+at] || slices.ContainsFunc(known, func(k model.Problem) bool { return k.Object == obj.Key && strings.HasPrefix(k.Reason, at) }) {
				continue
			}
			out = append(out, model.Problem{Object: obj.Key, Source: obj.Source, Warning: true, Reason: patch.Idle(i, p, proxies)})
		}
	}
	return out
}

// static returns a configuration of Envoy with the resources of a proxy.
func static(set func(typeURL string) *xds.Set) ([]byte, error) {
	config, err := xds.Static(set, xds.WithoutModules)
	if err != nil {
		return nil, err
	}
	return xds.WithoutScripts(config)
}

// Envoy returns why an Envoy refuses a configuration; empty if it accepts it.
func Envoy(ctx context.Context, binary string, config []byte) (refusal string, err error) {
	dir, err := os.MkdirTemp("", "outrigger-validate-") // mode 0700
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is in the directory of temporary files
	file := filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return "", err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, maxValidation)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "--mode", "validate", "-c", file, "--concurrency", "1", "--log-level", "error", "--disable-hot-restart")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.As(err, &exit):
		text := string(out)
		if _, reason, ok := strings.Cut(text, filepath.Base(file)+"': "); ok {
			text = reason
		}
		return clip.Text(strings.Join(strings.Fields(text), " "), maxText), nil
	case err != nil:
		return "", fmt.Errorf("start Envoy: %w; name its program with --envoy", err)
	}
	return "", nil
}
