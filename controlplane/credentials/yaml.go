// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package credentials

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"

	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/aliases"
)

// secret is a Secret or, with roots, a ConfigMap in a file.
type secret struct {
	key   key
	data  map[string][]byte
	roots map[string]string // data of a ConfigMap; nil for a Secret
}

// lineNumber finds the line number in an error of the YAML library.
var lineNumber = regexp.MustCompile(`\bline \d+`)

// decode returns the Secrets and ConfigMaps in a file of YAML documents and ignores other kinds. It
// does not return the errors of the library, because they may quote a value.
func decode(file []byte, namespace string) ([]secret, error) {
	var out []secret
	for i, text := range documents(file) {
		if !bytes.Contains(text, []byte("Secret")) && !bytes.Contains(text, []byte("ConfigMap")) {
			continue // other readers report errors of these documents
		}
		if err := aliases.Check(text); err != nil {
			return nil, fmt.Errorf("document %d is refused: its aliases expand to too much, or it is not YAML%s", i+1, place(err))
		}
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(text, &head); err != nil {
			return nil, fmt.Errorf("document %d is not the YAML of an object%s", i+1, place(err))
		}
		if head.Kind != "Secret" && head.Kind != "ConfigMap" || head.APIVersion != "v1" {
			continue
		}
		if head.Kind == "ConfigMap" {
			m, err := decodeConfigMap(text, namespace)
			if err != nil {
				return nil, fmt.Errorf("document %d %w", i+1, err)
			}
			out = append(out, m)
			continue
		}
		var s struct {
			Metadata   metadata          `json:"metadata"`
			Data       map[string][]byte `json:"data"`
			StringData map[string]string `json:"stringData"`
		}
		if err := yaml.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("document %d is not the YAML of a Secret: data must be base64, stringData text%s", i+1, place(err))
		}
		k, ok := s.Metadata.key(namespace)
		if !ok {
			return nil, fmt.Errorf("document %d is a Secret without a valid name", i+1)
		}
		data := map[string][]byte{}
		maps.Copy(data, s.Data)
		for k, v := range s.StringData { // takes precedence, as in Kubernetes
			data[k] = []byte(v)
		}
		out = append(out, secret{key: k, data: data})
	}
	return out, nil
}

type metadata struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// key returns the key of an object, and whether its names are valid.
func (m metadata) key(defaultNamespace string) (key, bool) {
	k := key{cmp.Or(m.Namespace, defaultNamespace), m.Name}
	return k, isName(k.name) && isName(k.namespace)
}

func decodeConfigMap(text []byte, namespace string) (secret, error) {
	var m struct {
		Metadata metadata          `json:"metadata"`
		Data     map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		return secret{}, fmt.Errorf("is not the YAML of a ConfigMap: data must be text%s", place(err))
	}
	k, ok := m.Metadata.key(namespace)
	if !ok {
		return secret{}, errors.New("is a ConfigMap without a valid name")
	}
	return secret{key: k, roots: map[string]string{keyTLSRoot: m.Data[keyTLSRoot]}}, nil
}

func place(err error) string {
	if line := lineNumber.FindString(err.Error()); line != "" {
		return " (" + line + " of it)"
	}
	return ""
}

// documents splits a file into YAML documents.
func documents(file []byte) [][]byte {
	var out [][]byte
	start, at := 0, 0
	for line := range bytes.Lines(file) {
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0) {
			out = append(out, file[start:at])
			start = at
		}
		at += len(line)
	}
	out = append(out, file[start:])
	kept := out[:0]
	for _, d := range out {
		if len(bytes.TrimSpace(bytes.TrimPrefix(d, []byte("---")))) > 0 {
			kept = append(kept, d)
		}
	}
	return kept
}
