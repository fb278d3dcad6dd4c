// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import "strings"

// expand replaces $(NAME) with its value, like Kubernetes in the command of a container. A name
// without a value remains unchanged. $$ stands for a single dollar sign, so that $$(NAME) yields
// $(NAME).
func expand(text string, vars map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 || i+1 == len(text) {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		rest := text[i+1:]
		text = rest
		switch rest[0] {
		case '$':
			b.WriteByte('$')
			text = rest[1:]
		case '(':
			name, after, ok := strings.Cut(rest[1:], ")")
			if !ok {
				b.WriteByte('$')
				continue
			}
			if value, ok := vars[name]; ok {
				b.WriteString(value)
			} else {
				b.WriteString("$(" + name + ")")
			}
			text = after
		default:
			b.WriteByte('$')
		}
	}
}

// environment returns the variables that outrigger sets for the application of a workload, followed
// by those of its env. They are expanded in order: a variable may refer to earlier ones.
func (m *meshFile) environment(w *workload) []variable {
	vars := []variable{
		{"NAME", w.name},
		{"NAMESPACE", w.namespace},
		{"SERVICE", w.service},
		{"ADDRESS", m.addressOf(w).String()},
		{"MESH_DIR", m.dir()},
	}
	if !m.isolated {
		proxy := "http://" + hostPort(w.address, m.proxyPort)
		for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
			vars = append(vars, variable{name, proxy})
		}
		// Some clients also send requests for this machine to the proxy.
		vars = append(vars, variable{"NO_PROXY", "localhost,127.0.0.1"}, variable{"no_proxy", "localhost,127.0.0.1"})
	}
	if w.listens() {
		vars = append(vars, variable{"PORT", itoa(w.port)}, variable{"SERVICE_PORT", itoa(w.servicePort)})
	}
	known := map[string]string{}
	for _, v := range vars {
		known[v.name] = v.value
	}
	for _, v := range w.env {
		value := expand(v.value, known)
		known[v.name] = value
		vars = append(vars, variable{v.name, value})
	}
	return vars
}

// argv returns the expanded command of a workload.
func (m *meshFile) argv(w *workload) []string {
	known := map[string]string{}
	for _, v := range m.environment(w) {
		known[v.name] = v.value
	}
	argv := make([]string, len(w.command))
	for i, arg := range w.command {
		argv[i] = expand(arg, known)
	}
	return argv
}
