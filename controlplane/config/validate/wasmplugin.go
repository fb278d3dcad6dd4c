// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package validate

import (
	"net/url"
	"regexp"
	"slices"

	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

var sha256Text = regexp.MustCompile(`^[a-f0-9]{64}$`)

func validateWasmPlugin(c *checker, cfg *model.Config) {
	w, ok := cfg.Spec.(*extensionsv1alpha1.WasmPlugin)
	if !ok {
		return
	}
	c.targets(targets{selector: w.GetSelector(), ref: w.GetTargetRef(), refs: w.GetTargetRefs()})
	c.module(w, "spec")
	for i, m := range w.GetMatch() {
		c.matchedPorts(m.GetPorts(), field.Index("spec.match", i)+".ports")
	}
}

func validateTrafficExtension(c *checker, cfg *model.Config) {
	x, ok := cfg.Spec.(*extensionsv1alpha1.TrafficExtension)
	if !ok {
		return
	}
	c.targets(targets{selector: x.GetSelector(), refs: x.GetTargetRefs()})
	const most = 65536 // bytes
	switch {
	case x.GetFilterConfig() == nil:
		c.errorf("spec", "has neither wasm nor lua: write one")
	case x.GetWasm() != nil:
		c.module(x.GetWasm(), "spec.wasm")
	case x.GetLua().GetInlineCode() == "":
		c.errorf("spec.lua.inlineCode", "is missing: write the code")
	case len(x.GetLua().GetInlineCode()) > most:
		c.errorf("spec.lua.inlineCode", "has %d bytes: at most %d are allowed", len(x.GetLua().GetInlineCode()), most)
	}
	for i, m := range x.GetMatch() {
		c.matchedPorts(m.GetPorts(), field.Index("spec.match", i)+".ports")
	}
}

// module is a Wasm module, in a WasmPlugin or a TrafficExtension.
type module interface {
	GetUrl() string
	GetSha256() string
	GetImagePullSecret() string
	GetPluginName() string
	GetVmConfig() *extensionsv1alpha1.VmConfig
}

func (c *checker) module(w module, at string) {
	c.moduleURL(w.GetUrl(), at+".url")
	if s := w.GetSha256(); s != "" && !sha256Text.MatchString(s) {
		c.errorf(at+".sha256", "is %s: write the SHA-256 of the module as 64 lower-case hexadecimal digits", field.Quote(s))
	}
	if s := w.GetImagePullSecret(); len(s) > maxName {
		c.errorf(at+".imagePullSecret", "has %d characters: at most %d are allowed", len(s), maxName)
	}
	const longestName = 256
	if s := w.GetPluginName(); len(s) > longestName {
		c.errorf(at+".pluginName", "has %d characters: at most %d are allowed", len(s), longestName)
	}
	c.pluginVariables(w.GetVmConfig().GetEnv(), at+".vmConfig.env")
}

// matchedPorts checks the ports of a match, which has each of them once.
func (c *checker) matchedPorts(ports []*typev1beta1.PortSelector, path string) {
	seen := map[uint32]int{}
	for i, p := range ports {
		at := field.Index(path, i) + ".number"
		c.port(p.GetNumber(), at)
		if first, ok := seen[p.GetNumber()]; ok {
			c.errorf(at, "is %d, as in %s: remove one", p.GetNumber(), field.Index(path, first))
			continue
		}
		seen[p.GetNumber()] = i
	}
}

// moduleURL checks where the module comes from. Without a scheme it is an
// image, as with oci://; a registry with a port looks like a scheme and needs
// one.
func (c *checker) moduleURL(s, path string) {
	const cure = "write file://, http://, https:// or oci:// before the address; without one it is an image"
	u, err := url.ParseRequestURI(s)
	if err != nil {
		if _, err = url.ParseRequestURI("https://" + s); err == nil {
			u = &url.URL{} // an image without scheme
		}
	}
	switch {
	case s == "":
		c.errorf(path, "is missing: write where the module is, such as oci://registry.example.com/plugin:v1")
	case err != nil:
		c.errorf(path, "is %s: it is not a URL; %s", field.Quote(s), cure)
	case !slices.Contains([]string{"", "file", "http", "https", "oci"}, u.Scheme):
		c.errorf(path, "is %s: %s", field.Quote(s), cure)
	}
}

func (c *checker) pluginVariables(env []*extensionsv1alpha1.EnvVar, path string) {
	const most, longestName, longestValue = 256, 256, 2048
	if len(env) > most {
		c.errorf(path, "has %d entries: at most %d are allowed", len(env), most)
	}
	seen := map[string]int{}
	for i, v := range env {
		at := field.Index(path, i)
		first, again := seen[v.GetName()]
		switch {
		case v.GetName() == "":
			c.errorf(at+".name", "is missing: write the name of a variable")
		case len(v.GetName()) > longestName:
			c.errorf(at+".name", "has %d characters: at most %d are allowed", len(v.GetName()), longestName)
		case again:
			c.errorf(at+".name", "is %s, as in %s: remove one", field.Quote(v.GetName()), field.Index(path, first))
		default:
			seen[v.GetName()] = i
		}
		if v.GetValueFrom() == extensionsv1alpha1.EnvValueSource_HOST && v.GetValue() != "" {
			c.errorf(at+".value", "is set, and valueFrom is HOST, the proxy's own variable: remove one of them")
		}
		if n := len(v.GetValue()); n > longestValue {
			c.errorf(at+".value", "has %d characters: at most %d are allowed", n, longestValue)
		}
	}
}
