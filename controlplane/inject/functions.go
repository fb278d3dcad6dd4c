// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/template"
)

// functions returns the functions of custom templates, beside those of Sprig. Names and results are
// those of Istio, except that env returns its default: templates do not read the environment.
// proxy and mesh are the views of the messages that protoToJSON takes.
func (j *job) functions(proxy, mesh map[string]any) template.Functions {
	all := template.Functions{
		"protoToJSON": func(v map[string]any) (string, error) {
			switch {
			case same(v, proxy):
				return changedFields(j.proxy), nil
			case same(v, mesh):
				return changedFields(j.mesh), nil
			}
			return "", errors.New("protoToJSON requires .ProxyConfig or .MeshConfig")
		},
		"formatDuration": func(v map[string]any) string {
			seconds, _ := v["Seconds"].(int64)
			nanos, _ := v["Nanos"].(int32)
			return (time.Duration(seconds)*time.Second + time.Duration(nanos)).String()
		},
		"env":                    func(_, fallback string) string { return fallback },
		"otelResourceAttributes": func(...any) string { return j.resourceAttributes() }, // always asked about this pod
	}
	maps.Copy(all, podFunctions())
	maps.Copy(all, textFunctions())
	maps.Copy(all, mapFunctions())
	return all
}

// same reports whether two maps are one.
func same(a, b map[string]any) bool {
	return a != nil && b != nil && reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer()
}

// podFunctions are about pods.
func podFunctions() template.Functions {
	ports := func(list []corev1.Container, skip string) string {
		var out []string
		for i := range list {
			if list[i].Name == skip {
				continue
			}
			for _, p := range list[i].Ports {
				if p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP {
					out = append(out, strconv.Itoa(int(p.ContainerPort)))
				}
			}
		}
		return joined(out)
	}
	return template.Functions{
		"annotation": func(meta metav1.ObjectMeta, name string, value any) string {
			return annotated(meta.Annotations, name, text(fmt.Sprint(value)))
		},
		"isset":               func(m map[string]string, key string) bool { _, ok := m[key]; return ok },
		"excludeInboundPort":  func(port any, list string) string { return excludedPorts(fmt.Sprint(port), list) },
		"includeInboundPorts": func(list []corev1.Container) string { return ports(list, "") },
		"applicationPorts":    func(list []corev1.Container) string { return ports(list, proxyName) },
		"kubevirtInterfaces":  func(s string) string { return s },
		"excludeInterfaces":   func(s string) string { return s },
		"appendMultusNetwork": func(list, network string) string {
			namespace, name, ok := strings.Cut(network, "/")
			if !ok {
				namespace, name = "", network
			}
			return withNetwork(list, namespace, name)
		},
	}
}

// textFunctions are about texts.
func textFunctions() template.Functions {
	return template.Functions{
		"contains":  func(part, s string) bool { return strings.Contains(s, part) },
		"toLower":   strings.ToLower,
		"directory": func(file string) string { dir, _ := path.Split(file); return dir },
		// The first line stays, unlike that of Sprig's function.
		"indent": func(spaces int, s string) (string, error) {
			const most = 100
			if spaces < 0 || spaces > most {
				return "", fmt.Errorf("indent of %d; it must be from 0 to %d", spaces, most)
			}
			return strings.ReplaceAll(s, "\n", "\n"+strings.Repeat(" ", spaces)), nil
		},
		"toYaml": func(v any) (string, error) {
			doc, err := yaml.Marshal(v)
			return string(doc), err
		},
		"structToJSON": func(v any) (string, error) {
			doc, err := json.Marshal(v)
			return string(doc), err
		},
		"toJSON": func(m map[string]string) (string, error) { return toJSON(m) },
		"fromJSON": func(s string) (v any, err error) {
			if err = json.Unmarshal([]byte(s), &v); err != nil {
				return nil, fmt.Errorf("fromJSON of %s: %w", clipped(s), err)
			}
			return v, nil
		},
		"valueOrDefault": func(v, fallback any) any {
			if v == nil || v == "" {
				return fallback
			}
			return v
		},
	}
}

func toJSON(m map[string]string) (string, error) {
	if m == nil {
		m = map[string]string{}
	}
	doc, err := json.Marshal(m)
	return string(doc), err
}

// mapFunctions are about maps.
func mapFunctions() template.Functions {
	mergeAll := func(several ...map[string]string) map[string]string {
		out := map[string]string{}
		for _, m := range several {
			maps.Copy(out, m)
		}
		return out
	}
	return template.Functions{
		"omit": func(m map[string]string, keys ...string) map[string]string {
			out := maps.Clone(m)
			maps.DeleteFunc(out, func(key, _ string) bool { return slices.Contains(keys, key) })
			return out
		},
		"strdict": func(pairs ...string) map[string]string {
			out := map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				value := ""
				if i+1 < len(pairs) {
					value = pairs[i+1]
				}
				out[pairs[i]] = value
			}
			return out
		},
		"mergeMaps": mergeAll,
		"toJsonMap": func(several ...map[string]string) (string, error) { return toJSON(mergeAll(several...)) },
		"omitNil":   withoutNil,
	}
}

// withoutNil returns a value without the parts of maps and lists that are nil, and nil if nothing
// remains.
func withoutNil(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, part := range v {
			if kept := withoutNil(part); kept != nil {
				out[key] = kept
			}
		}
		if len(out) == 0 && len(v) > 0 {
			return nil
		}
		return out
	case []any:
		out := []any{}
		for _, part := range v {
			if kept := withoutNil(part); kept != nil {
				out = append(out, kept)
			}
		}
		if len(out) == 0 && len(v) > 0 {
			return nil
		}
		return out
	}
	return v
}
