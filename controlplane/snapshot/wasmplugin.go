// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package snapshot

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
)

// WasmPlugin is one valid object of the kind WasmPlugin or TrafficExtension.
type WasmPlugin struct {
	Config *model.Config
	// Spec is that of the object. A TrafficExtension has the same fields in other places.
	Spec *extensionsv1alpha1.WasmPlugin
	// At is the path of the fields of the module in the object.
	At string
	// Lua is the code that runs instead of a module; empty for a module.
	Lua string
	// Name is the name of the filter in listeners and of its configuration: namespace.name for a
	// WasmPlugin, namespace.name~lua or namespace.name~wasm for a TrafficExtension.
	Name string
	// URL is the location of the module: file://, http://, https:// or oci://.
	URL string
	// Settings is pluginConfig as JSON in a deterministic encoding; empty if there is none.
	Settings string
	// Version changes if and only if the spec changes.
	Version string
	// ListenerKey is equal for two versions of the object that result in the same listeners.
	ListenerKey string
}

// WasmPlugins is the index of plugins by workload.
type WasmPlugins struct {
	root string
	// byNamespace are the plugins for the workloads of a namespace, including those of the root
	// namespace, in the order in which a request passes them. A namespace without its own plugins
	// has no element and uses those of the root namespace.
	byNamespace map[string][]*WasmPlugin
	byName      map[string]*WasmPlugin
	all         []*model.Config
	problems    []model.Problem
}

func (w *WasmPlugins) objects() []*model.Config {
	if w == nil {
		return nil
	}
	return w.all
}

func newWasmPlugins(old *WasmPlugins, objs []*model.Config, set settings) *WasmPlugins {
	w := &WasmPlugins{root: set.root, byNamespace: make(map[string][]*WasmPlugin), byName: make(map[string]*WasmPlugin), all: objs}
	for _, obj := range objs {
		plugin := pluginFrom(obj)
		if plugin == nil {
			continue
		}
		report := func(format string, args ...any) {
			w.problems = append(w.problems, model.Problem{Object: obj.Key, Source: obj.Source, Reason: fmt.Sprintf(format, args...)})
		}
		if err := plugin.complete(set); err != nil {
			report("%s; the plugin is ignored", err)
			continue
		}
		if old != nil && old.byName[plugin.Name] != nil && sameConfig(old.byName[plugin.Name].Config, obj) {
			plugin = old.byName[plugin.Name]
		}
		for i, ref := range targetRefs(plugin.Spec) {
			if ref.GetGroup() != gatewayAPIGroup || ref.GetKind() != string(kindGateway) {
				report("spec.targetRefs[%d]: %s %q is not a Gateway of %s, so the plugin has no effect; name a Gateway, or use a selector",
					i, ref.GetKind(), ref.GetName(), gatewayAPIGroup)
			}
		}
		w.byName[plugin.Name] = plugin
		w.byNamespace[obj.Namespace] = append(w.byNamespace[obj.Namespace], plugin)
	}
	for namespace, own := range w.byNamespace {
		if namespace != w.root {
			w.byNamespace[namespace] = inOrder(slices.Concat(w.byNamespace[w.root], own))
		}
	}
	if own := w.byNamespace[w.root]; len(own) > 0 {
		w.byNamespace[w.root] = inOrder(slices.Clone(own))
	}
	return w
}

// inOrder sorts plugins by priority, highest first. Plugins without a priority come last, and the
// order of equal ones is preserved.
func inOrder(plugins []*WasmPlugin) []*WasmPlugin {
	priority := func(p *WasmPlugin) int64 {
		if v := p.Spec.GetPriority(); v != nil {
			return int64(v.GetValue())
		}
		return math.MinInt64
	}
	slices.SortStableFunc(plugins, func(a, b *WasmPlugin) int { return cmp.Compare(priority(b), priority(a)) })
	return plugins
}

// pluginFrom returns the plugin of an object, without what complete adds; nil if it is none.
func pluginFrom(obj *model.Config) *WasmPlugin {
	p := &WasmPlugin{Config: obj, At: "spec", Name: obj.Namespace + "." + obj.Name}
	switch spec := obj.Spec.(type) {
	case *extensionsv1alpha1.WasmPlugin:
		p.Spec = spec
	case *extensionsv1alpha1.TrafficExtension:
		w := spec.GetWasm()
		p.Spec = &extensionsv1alpha1.WasmPlugin{
			Selector: spec.GetSelector(), TargetRefs: spec.GetTargetRefs(), Phase: extensionsv1alpha1.PluginPhase(spec.GetPhase()), Priority: spec.GetPriority(),
			Url: w.GetUrl(), Sha256: w.GetSha256(), ImagePullPolicy: w.GetImagePullPolicy(), ImagePullSecret: w.GetImagePullSecret(),
			PluginConfig: w.GetPluginConfig(), PluginName: w.GetPluginName(), FailStrategy: w.GetFailStrategy(), VmConfig: w.GetVmConfig(), Type: w.GetType(),
		}
		for _, m := range spec.GetMatch() {
			p.Spec.Match = append(p.Spec.Match, &extensionsv1alpha1.WasmPlugin_TrafficSelector{Mode: m.GetMode(), Ports: m.GetPorts()})
		}
		p.At, p.Name = "spec.wasm", p.Name+"~wasm"
		if w == nil {
			p.At, p.Name, p.Lua = "spec.lua", obj.Namespace+"."+obj.Name+"~lua", spec.GetLua().GetInlineCode()
		}
	default:
		return nil
	}
	return p
}

// complete adds what is derived from the spec. The error is the reason why the plugin cannot be used
// in Envoy.
func (p *WasmPlugin) complete(set settings) error {
	spec := p.Spec
	if spec.GetType() == extensionsv1alpha1.PluginType_NETWORK {
		return fmt.Errorf("%s.type is NETWORK, but only HTTP is supported: write HTTP, or remove the object", p.At)
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return fmt.Errorf("spec cannot be written: %w", err)
	}
	p.Version = strconv.FormatUint(xxhash.Sum64(text), 16)
	switch {
	case p.At != "spec.lua":
		if p.URL, err = moduleURL(spec.GetUrl(), p.At); err != nil {
			return err
		}
	case p.Lua == "":
		return errors.New("spec.lua.inlineCode is missing: write the code, or a module in spec.wasm")
	case set.patches.NoLua:
		return errors.New("spec.lua: " + patch.LuaOff)
	}
	if len(spec.GetPluginConfig().GetFields()) > 0 {
		if p.Settings, err = compactJSON(spec.GetPluginConfig()); err != nil {
			return fmt.Errorf("%s.pluginConfig cannot be written as JSON: %w", p.At, err)
		}
	}
	var key strings.Builder
	key.WriteString(strconv.Quote(p.Name) + "@" + strconv.Itoa(int(spec.GetPhase())))
	if spec.GetFailStrategy() == extensionsv1alpha1.FailStrategy_FAIL_OPEN {
		key.WriteByte('?') // its filter has a default configuration
	}
	for _, m := range spec.GetMatch() {
		key.WriteString("/" + strconv.Itoa(int(m.GetMode())))
		for _, port := range m.GetPorts() {
			key.WriteString(":" + strconv.FormatUint(uint64(port.GetNumber()), 10))
		}
	}
	p.ListenerKey = key.String()
	return nil
}

// moduleURL returns the URL of a module, whose field is at a path. A value without a scheme is an OCI image.
func moduleURL(text, at string) (string, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return "", fmt.Errorf("%s.url is missing: write where the module is, such as oci://registry.example.com/plugin:v1", at)
	case err != nil: // the text of the error may contain a password
		return "", fmt.Errorf("%s.url is not a URL: write file://, http://, https:// or oci:// before the address", at)
	case u.Scheme == "":
		return "oci://" + text, nil
	case !slices.Contains([]string{"file", "http", "https", "oci"}, u.Scheme):
		return "", fmt.Errorf("%s.url has the scheme %q: write file, http, https or oci", at, u.Scheme)
	case u.Scheme == "file" && len(text) <= len("file://") || u.Scheme == "file" && !strings.HasPrefix(text, "file://"):
		return "", fmt.Errorf("%s.url names no file: write its path after file://", at)
	}
	return text, nil
}

// compactJSON returns a message as JSON in a deterministic encoding, unlike protojson.
func compactJSON(msg proto.Message) (string, error) {
	text, err := protojson.Marshal(msg)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		return "", err
	}
	return out.String(), nil
}

const (
	gatewayAPIGroup = "gateway.networking.k8s.io"
	kindGateway     = model.Gateway // the Gateway API uses the same kind
	// gatewayNameLabel is the label on the workloads of a Gateway of the Gateway API.
	gatewayNameLabel = gatewayAPIGroup + "/gateway-name"
)

// selects reports whether a plugin applies to a workload.
func (p *WasmPlugin) selects(namespace string, labels map[string]string) bool {
	refs := targetRefs(p.Spec)
	if len(refs) == 0 {
		return model.Selects(p.Spec.GetSelector().GetMatchLabels(), labels)
	}
	gateway := labels[gatewayNameLabel]
	return gateway != "" && namespace == p.Config.Namespace && slices.ContainsFunc(refs, func(ref *typev1beta1.PolicyTargetReference) bool {
		return ref.GetGroup() == gatewayAPIGroup && ref.GetKind() == string(kindGateway) && ref.GetName() == gateway
	})
}

// For returns the plugins of a workload in the order in which a request passes them within each
// phase: by priority, then those of the root namespace, then by age.
func (w *WasmPlugins) For(namespace string, labels map[string]string) []*WasmPlugin {
	list, ok := w.byNamespace[namespace]
	if !ok {
		list = w.byNamespace[w.root]
	}
	var out []*WasmPlugin
	for _, p := range list {
		if p.selects(namespace, labels) {
			out = append(out, p)
		}
	}
	return out
}

// Get returns the plugin with the given name, namespace.name, or nil if it does not exist.
func (w *WasmPlugins) Get(name string) *WasmPlugin { return w.byName[name] }

// Root returns the namespace whose plugins apply to all namespaces.
func (w *WasmPlugins) Root() string { return w.root }
