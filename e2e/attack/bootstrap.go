// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// bootstrapAttacks try to change Envoy's bootstrap.
func bootstrapAttacks() []attack {
	const area = "bootstrap"
	return []attack{
		{area, "JSON, YAML, template and line-break text in metadata, labels, annotations and fields of ProxyConfig", "Envoy accepts the bootstrap, which has the admin port, listeners, clusters and layers of one without that text", injectBootstrap},
		{area, "templates that call themselves, multiply, read the environment or files, or close the JSON early", "the agent ends with a sentence that names the template", badTemplates},
	}
}

// poison is text that has a meaning in JSON, YAML, templates and Envoy's formats.
const poison = `"}}, "admin": {"address": {"socket_address": {"address": "0.0.0.0", "port_value": 9901}}}, "x": {"y": "` +
	"\n- name: evil\n\r\u2028" + `'{{ env "PATH" }}{{ .meta_json_str }}%ENVIRONMENT(PATH)%\` + "\t$(HOST_IP)"

// poisoned returns the environment, labels and annotations of a pod, with the text in each value.
func poisoned(text string) (env []string, labels, annotations string, err error) {
	object, err := json.Marshal(map[string]any{"a": text, text: []string{text}})
	if err != nil {
		return nil, "", "", err
	}
	env = []string{
		"ISTIO_META_EVIL=" + text, "ISTIO_META_WORKLOAD_NAME=" + text, "ISTIO_META_OWNER=" + text, "ISTIO_META_MESH_ID=" + text,
		"ISTIO_METAJSON_EVIL=" + string(object), "CANONICAL_SERVICE=" + text, "CANONICAL_REVISION=" + text, "ISTIO_META_NETWORK=" + text,
	}
	labels = "app=\"pay\"\nevil=" + strconv.Quote(text) + "\nversion=" + strconv.Quote(text) + "\n"
	config, err := json.Marshal(map[string]any{"serviceCluster": text, "proxyMetadata": map[string]string{"ISTIO_META_MORE": text, "EVIL": text}})
	if err != nil {
		return nil, "", "", err
	}
	annotations = "evil=" + strconv.Quote(text) + "\nproxy.istio.io/config=" + strconv.Quote(string(config)) + "\n"
	return env, labels, annotations, nil
}

// bootstrapOf runs a sidecar whose pod contains the text in all values, and returns its bootstrap,
// separated from the node.
func bootstrapOf(ctx context.Context, s *suite, text string) (parts map[string]any, node string, err error) {
	env, labels, annotations, err := poisoned(text)
	if err != nil {
		return nil, "", err
	}
	r := rig{env: env, prepare: func(dir string) error {
		return errors.Join(write(filepath.Join(dir, "etc/istio/pod/labels"), labels, 0o644), write(filepath.Join(dir, "etc/istio/pod/annotations"), annotations, 0o644))
	}}
	_, err = r.run(ctx, s, func(c *sidecar) (string, error) {
		doc, err := os.ReadFile(filepath.Join(c.dir, "etc/istio/proxy/envoy-rev.json"))
		if err != nil {
			return "", err
		}
		same := strings.NewReplacer(c.ip, "own", c.plane.ip, "plane", c.dir, "dir").Replace(string(doc))
		if err := json.Unmarshal([]byte(same), &parts); err != nil {
			return "", err
		}
		own, err := json.Marshal(parts["node"])
		node = string(own)
		delete(parts, "node")
		return "", err
	})
	return parts, node, err
}

func injectBootstrap(ctx context.Context, s *suite) (outcome, error) {
	clean, _, err := bootstrapOf(ctx, s, "harmless")
	if err != nil {
		return outcome{}, err
	}
	dirty, node, err := bootstrapOf(ctx, s, poison)
	if err != nil {
		return outcome{}, err
	}
	if strings.Count(node, "port_value") < 10 || !strings.Contains(node, "ENVIRONMENT(PATH)") {
		return outcome{}, fmt.Errorf("the text is not in the node: this attack shows nothing: %s", node)
	}
	if strings.Contains(node, os.Getenv("PATH")) || strings.Contains(node, "/usr/local/bin") {
		return outcome{}, errors.New("a directive in a value was executed")
	}
	if len(clean) != len(dirty) {
		return outcome{}, fmt.Errorf("the bootstrap has %d parts, and %d without the text", len(dirty), len(clean))
	}
	for name, part := range clean {
		if name != "stats_config" && !reflect.DeepEqual(part, dirty[name]) {
			return outcome{}, fmt.Errorf("%s is %v, and %v without the text", name, dirty[name], part)
		}
	}
	return outcome{seen: fmt.Sprintf("accepted; all %d parts beside the node are the same", len(clean))}, nil
}

func badTemplates(ctx context.Context, s *suite) (outcome, error) {
	dir, err := s.folder("templates")
	if err != nil {
		return outcome{}, err
	}
	templates := map[string]string{
		"itself":   `{{ define "a" }}{{ template "a" }}{{ template "a" }}{{ end }}{"x": "{{ template "a" }}"}`,
		"repeat":   `{"x": "{{ repeat 1000000000 "xxxxxxxxxx" }}"}`,
		"nested":   `{{ range untilStep 0 100000 1 }}{{ range untilStep 0 100000 1 }}{{ range untilStep 0 100000 1 }}x{{ end }}{{ end }}{{ end }}`,
		"env":      `{"x": "{{ env "PATH" }}"}`,
		"expand":   `{"x": "{{ expandenv "$PATH" }}"}`,
		"file":     `{"x": "{{ readFile "/etc/passwd" }}"}`,
		"method":   `{"x": "{{ .nodeID.ServeHTTP }}"}`,
		"early":    `{"x": 1}} {"admin": {}}`,
		"not JSON": `admin: {}`,
		"empty":    ``,
		"unclosed": `{"x": "{{ if true }}`,
	}
	for name, text := range templates {
		path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".json")
		if err := write(path, text, 0o644); err != nil {
			return outcome{}, err
		}
		_, err := rig{env: []string{"ISTIO_BOOTSTRAP=" + path}}.run(ctx, s, func(*sidecar) (string, error) { return "", nil })
		if err == nil || !strings.Contains(err.Error(), "the agent has ended") || !strings.Contains(err.Error(), path) {
			return outcome{}, fmt.Errorf("template %s: %w", name, errors.Join(err, errors.New("the agent does not end with a sentence about it")))
		}
	}
	return outcome{seen: fmt.Sprintf("%d of %d refused", len(templates), len(templates))}, nil
}
