// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode/utf16"

	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// tenantAttacks write objects and files that are expensive to parse.
func tenantAttacks() []attack {
	const (
		area    = "objects of a tenant"
		promise = "changes of other objects are applied; memory grows by less than 500 MB, the log by less than 200 lines; SIGTERM ends the program"
	)
	return []attack{
		{area, "a VirtualService with thousands of equal hosts, and one with thousands of hosts", promise, tenant(manyHosts)},
		{area, "lists, maps and texts of other kinds grown to hundreds of kB", promise, tenant(grownKinds)},
		{area, "YAML with anchors that multiply, deep nesting, duplicate keys and other encodings", promise, tenant(hardYAML)},
		{area, "files with tens of thousands of empty or broken documents", promise, tenant(manyDocuments)},
		{area, "link loops in the directory, and links to /proc and /", promise, tenant(linkLoops)},
		{area, "named pipes, sockets and devices among the files", promise, tenant(oddFiles)},
		{area, "Gateways and routes with template and script text in every name", promise, tenant(scriptTexts)},
	}
}

// tenantMemory is the maximum memory, in bytes, that objects of one tenant may cost.
const tenantMemory = 500e6

// tenant wraps an attack on the configuration of a new control plane. An object that another tenant
// writes afterwards must be applied.
func tenant(attack func(dir string, s *suite) error) func(context.Context, *suite) (outcome, error) {
	return func(ctx context.Context, s *suite) (outcome, error) {
		p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop()})
		if err != nil {
			return outcome{}, err
		}
		defer p.Stop()
		before, err := p.usage()
		if err != nil {
			return outcome{}, err
		}
		p.resetPeak()
		dir := filepath.Join(p.dir, "config", "tenant")
		if err := os.Mkdir(dir, 0o755); err != nil {
			return outcome{}, err
		}
		if err := attack(dir, s); err != nil {
			return outcome{}, err
		}
		if err := p.applies(ctx); err != nil {
			return outcome{}, fmt.Errorf("a change of another object is not applied: %w", err)
		}
		if err := p.rests(ctx); err != nil {
			return outcome{}, err
		}
		after, err := p.usage()
		if err != nil {
			return outcome{}, err
		}
		c := costOf(before, after)
		out := outcome{cost: c, seen: "the change was applied; " + c.String()}
		switch {
		case c.memory > tenantMemory:
			return out, fmt.Errorf("memory grew by %.1f MB", float64(c.memory)/1e6)
		case c.lines > floodLines:
			return out, fmt.Errorf("%d lines were logged", c.lines)
		case after.logged-before.logged > floodLines*2000:
			return out, fmt.Errorf("%.1f MB were logged in %d lines", float64(after.logged-before.logged)/1e6, c.lines)
		}
		return out, p.ends()
	}
}

// applies writes another service and waits until a proxy receives its cluster.
func (p *plane) applies(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	other := service("other", "10.96.0.3", "10.0.0.3")
	if err := p.write("other.yaml", other); err != nil {
		return err
	}
	st, err := p.asWorkload(ctx, "shop", "pay", "10.0.0.1")
	if err != nil {
		return err
	}
	defer st.close()
	if err := st.ask(resourcev3.ClusterType); err != nil {
		return err
	}
	for {
		r, err := st.next(resourcev3.ClusterType)
		if err != nil {
			return err
		}
		for _, any := range r.Resources {
			if strings.Contains(string(any.Value), "other.shop.svc.cluster.local") {
				return nil
			}
		}
	}
}

// rests waits until the program has processed what was written, when its CPU usage becomes low.
func (p *plane) rests(ctx context.Context) error {
	last, err := p.usage()
	if err != nil {
		return err
	}
	return eventually(ctx, func() error {
		time.Sleep(time.Second)
		now, err := p.usage()
		if err != nil {
			return err
		}
		used := now.CPU - last.CPU
		if last = now; used > 200*time.Millisecond {
			return fmt.Errorf("it does not come to rest: %s of CPU time in a second", used)
		}
		return nil
	})
}

// ends sends SIGTERM and waits for the exit.
func (p *plane) ends() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Ended:
		return nil
	case <-time.After(patience):
		return errors.New("SIGTERM does not end it")
	}
}

// object returns the YAML of an object of a tenant.
func object(apiVersion, kind, name, spec string) string {
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n" + spec + "---\n"
}

const (
	networking = "networking.istio.io/v1"
	security   = "security.istio.io/v1"
)

// items returns n items of a YAML list in one line.
func items(n int, item func(int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = item(i)
	}
	return "[" + strings.Join(all, ", ") + "]"
}

func manyHosts(dir string, s *suite) error {
	route := "  http: [{route: [{destination: {host: pay}}]}]\n"
	equal := items(s.some(20_000, 1500), func(int) string { return "a.b.cc" })
	different := items(s.some(20_000, 5000), func(i int) string { return fmt.Sprintf("host-%d.example.com", i) })
	return write(filepath.Join(dir, "hosts.yaml"), object(networking, "VirtualService", "equal", "  hosts: "+equal+"\n"+route)+
		object(networking, "VirtualService", "different", "  hosts: "+different+"\n"+route), 0o644)
}

func grownKinds(dir string, s *suite) error {
	n := s.some(20_000, 4000)
	same := func(text string) string { return items(n, func(int) string { return text }) }
	each := func(format string) string {
		return items(n, func(i int) string { return fmt.Sprintf(format, i) })
	}
	long := strings.Repeat("x", 30*n)
	texts := []string{
		object(networking, "ServiceEntry", "a", "  hosts: "+same("a.example.com")+"\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  resolution: DNS\n"),
		object(networking, "ServiceEntry", "b", "  hosts: [b.example.com]\n  ports: "+each("{number: %d, name: p, protocol: HTTP}")+"\n  resolution: DNS\n"),
		object(networking, "ServiceEntry", "c", "  hosts: [c.example.com]\n  addresses: "+same("10.1.1.1")+"\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  resolution: STATIC\n  endpoints: "+each("{address: 10.2.2.2, labels: {x: y%d}}")+"\n"),
		object(networking, "DestinationRule", "d", "  host: pay\n  subsets: "+each("{name: s, labels: {v: x%d}}")+"\n"),
		object(networking, "Sidecar", "e", "  egress: "+same("{hosts: ['./*']}")+"\n"),
		object(networking, "Sidecar", "f", "  egress: [{hosts: "+same("'./*'")+"}]\n"),
		object(networking, "Gateway", "g", "  selector: {x: y}\n  servers: "+each("{port: {number: 80, name: n%d, protocol: HTTP}, hosts: ['*']}")+"\n"),
		object(networking, "VirtualService", "h", "  hosts: [h.example.com]\n  http: "+each("{match: [{uri: {prefix: /%d}}], route: [{destination: {host: pay}}]}")+"\n"),
		object(networking, "VirtualService", "i", "  hosts: [i.example.com]\n  http: [{match: "+same("{uri: {prefix: /}}")+", route: [{destination: {host: pay}}]}]\n"),
		object(networking, "VirtualService", "j", "  hosts: [j.example.com]\n  http: [{route: "+same("{destination: {host: pay}, weight: 1}")+"}]\n"),
		object(networking, "VirtualService", "k", "  hosts: ["+long+"]\n  http: [{match: [{uri: {regex: '("+long+"'}}], route: [{destination: {host: pay}}]}]\n"),
		object(networking, "WorkloadEntry", "l", "  address: "+long+"\n  labels: {"+strings.Trim(each("l%d: x"), "[]")+"}\n"),
		object(security, "PeerAuthentication", "m", "  selector: {matchLabels: {x: "+long+"}}\n  portLevelMtls: {"+strings.Trim(each("%d: {mode: STRICT}"), "[]")+"}\n"),
		object(networking, "NoSuchField", "n", "  "+long+": x\n"),
	}
	return write(filepath.Join(dir, "grown.yaml"), strings.Join(texts, ""), 0o644)
}

func hardYAML(dir string, s *suite) error {
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for i := range 12 {
		ref := "*" + string(rune('a'+i))
		bomb += fmt.Sprintf("%c: &%c [%s]\n", 'b'+i, 'b'+i, strings.TrimSuffix(strings.Repeat(ref+", ", 9), ", "))
	}
	deep := strings.Repeat("[", s.some(200_000, 50_000))
	valid := object(networking, "VirtualService", "v", "  hosts: [v.example.com]\n  hosts: [pay]\n")
	utf := "\xff\xfe"
	for _, unit := range utf16.Encode([]rune(valid)) {
		utf += string([]byte{byte(unit), byte(unit >> 8)})
	}
	for name, text := range map[string]string{
		"bomb.yaml": bomb, "deep.yaml": deep, "deepmap.yaml": strings.Repeat("{a: ", 20_000), "keys.yaml": valid + "spec: {}\n", "utf16.yaml": utf,
		"mark.yaml": "\xef\xbb\xbf" + valid, "zero.yaml": valid + "\x00\x00", "latin.yaml": "kind: \xe9\n", "merge.yaml": "<<: &x {<<: *x}\n", "self.yaml": "&x [*x]\n",
		"tag.yaml": "!!binary |\n  " + strings.Repeat("QUJD", 10_000) + "\n", "bracket.yaml": strings.Repeat("- ", 20_000), "indent.yaml": strings.Repeat(" ", 500_000) + "x: y\n",
	} {
		if err := write(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func manyDocuments(dir string, s *suite) error {
	n, few := s.some(100_000, 20_000), 9000 // a single file may contain only a few of them
	var errs []error
	for i := range s.some(20, 5) {
		text := strings.Repeat("--- {}\n", few/3) + strings.Repeat("---\nkind: [\n", few/3) +
			strings.Repeat(object(networking, "VirtualService", fmt.Sprintf("bad%d", i), "  hosts: ['']\n"), few/3)
		errs = append(errs, write(filepath.Join(dir, fmt.Sprintf("many%d.yaml", i)), text, 0o644))
	}
	return errors.Join(errors.Join(errs...),
		write(filepath.Join(dir, "empty.yaml"), strings.Repeat("--- {}\n", n), 0o644),
		write(filepath.Join(dir, "broken.yaml"), strings.Repeat("---\nkind: [\n", n), 0o644),
		write(filepath.Join(dir, "unknown.yaml"), strings.Repeat("---\napiVersion: v9\nkind: Nothing\nmetadata: {name: x}\n", n), 0o644),
		write(filepath.Join(dir, "same.yaml"), strings.Repeat(object(networking, "VirtualService", "same", "  hosts: [x.example.com]\n"), n/20), 0o644),
	)
}

func linkLoops(dir string, _ *suite) error {
	return errors.Join(
		os.Symlink(".", filepath.Join(dir, "a")), os.Symlink(".", filepath.Join(dir, "b")), os.Symlink("..", filepath.Join(dir, "c")),
		os.Symlink("/proc", filepath.Join(dir, "proc")), os.Symlink("/", filepath.Join(dir, "root")),
		os.Symlink("itself.yaml", filepath.Join(dir, "itself.yaml")), os.Symlink("/proc/self/environ", filepath.Join(dir, "environ.yaml")),
	)
}

func oddFiles(dir string, _ *suite) error {
	device := filepath.Join(dir, "zero.yaml")
	err := errors.Join(
		syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644),
		os.Symlink("/dev/zero", filepath.Join(dir, "endless.yaml")), os.Symlink("/dev/tty", filepath.Join(dir, "tty.yaml")),
		os.Symlink("/proc/kmsg", filepath.Join(dir, "kmsg.yaml")), os.Symlink("/dev/stdin", filepath.Join(dir, "stdin.yaml")),
		os.Mkdir(filepath.Join(dir, "directory.yaml"), 0o755),
	)
	_ = syscall.Mknod(device, syscall.S_IFCHR|0o644, 1<<8|5) // requires root
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "closed.yaml"), []byte("x"), 0))
}

func scriptTexts(dir string, s *suite) error {
	var all strings.Builder
	for i, text := range []string{"{{.Mesh}}", `{{printf "%s" (env "PATH")}}`, "${HOME}", "%(x)s", "<script>alert(1)</script>", "../../etc/passwd", "%DYNAMIC_METADATA(x:y)%", "\\r\\n x: y", "\x7f"} {
		quoted := fmt.Sprintf("%q", text)
		all.WriteString(object(networking, "VirtualService", fmt.Sprintf("s%d", i), "  hosts: ["+quoted+"]\n  http: [{name: "+quoted+", route: [{destination: {host: "+quoted+", subset: "+quoted+"}}]}]\n"))
		all.WriteString(object(networking, "Gateway", fmt.Sprintf("g%d", i), "  selector: {x: "+quoted+"}\n  servers: [{port: {number: 443, name: "+quoted+", protocol: HTTPS}, hosts: ["+quoted+"], tls: {mode: SIMPLE, credentialName: "+quoted+"}}]\n"))
	}
	return write(filepath.Join(dir, "script.yaml"), all.String(), 0o644)
}
