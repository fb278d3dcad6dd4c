// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var machines = flag.Int("machines", 0, "how many machines join a mesh in TestJoinManyMachines; without, it is left out: ten take minutes")

// call requests services, and ends with an error that has what each of them answered.
func call(ctx context.Context, urls []string) error {
	var lines []string
	for _, url := range urls {
		body, err := get(ctx, url)
		lines = append(lines, fmt.Sprintf("%s %s %v", url, body, err))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// many are machines of one mesh, each with an account and a service of its name.
type many struct {
	control *machine
	joined  []*machine
}

// TestJoinManyMachines boots machines, which install the packages and join at the same time by the
// lines that the control plane prints. Each of them calls all others with mutual TLS: also after one
// was rebooted, and after one has left.
func TestJoinManyMachines(t *testing.T) {
	if *machines < 3 {
		t.Skip("only with -machines 3 or more")
	}
	f := bootMany(t)
	begun := time.Now()
	took := func(what string) {
		t.Logf("%-50s %.1f s", what, time.Since(begun).Seconds())
		begun = time.Now()
	}
	f.join(t)
	took("all are installed and have joined")
	f.talk(t)
	took("each has called all others")
	f.measure(t)

	rebooted := f.joined[1]
	rebooted.halt()
	rebooted.start()
	rebooted.run("sh", "-c", "echo nameserver 10.99.1.1 > /etc/resolv.conf")
	rebooted.until("the agent is ready", func() bool { return rebooted.property(agentUnit, "ActiveState") == "active" })
	f.talk(t)
	took(rebooted.name + " was rebooted, all have called all others")

	left := f.joined[2]
	left.run("outrigger", "leave")
	f.joined = slices.Delete(f.joined, 2, 3)
	f.control.until("the entry is removed", func() bool {
		return !strings.Contains(f.control.run("ls", "/etc/outrigger/config/shop"), left.name)
	})
	f.talk(t)
	if output := f.joined[0].call(left); strings.Contains(output, "spiffe:") {
		t.Errorf("a machine that has left answers: %s", output)
	}
	took(left.name + " has left, all others have called each other")
}

func bootMany(t *testing.T) *many {
	begun := time.Now()
	packages := makePackages(t, "--programs", *programs, "--arch", runtime.GOARCH, "--version", "v1.0.0", "--envoy-version", *envoyVersion, "--format", "deb")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &many{control: newMachine(t)}
	f.control.name = "control"
	f.control.host("cp", program, filepath.Join(packages, "app"))
	for i := range *machines {
		m := newMachine(t)
		m.name = "m" + strconv.Itoa(i)
		f.joined = append(f.joined, m)
	}
	for i, m := range append([]*machine{f.control}, f.joined...) {
		m.connect = onBridge(f.control, i+1)
		m.boot(packages)
		m.run("sh", "-c", "echo 10.99.1.1 mesh.example.com >> /etc/hosts; echo nameserver 10.99.1.1 > /etc/resolv.conf")
	}
	t.Logf("%d machines have booted after %.1f s", len(f.joined)+1, time.Since(begun).Seconds())
	for _, m := range f.joined {
		m.write("/etc/systemd/system/app.service", "[Service]\nExecStart=/packages/app\nEnvironment="+roleVariable+"=serve\nRestart=always\n[Install]\nWantedBy=multi-user.target\n")
		m.run("systemctl", "enable", "--now", "app")
	}
	return f
}

// join starts the control plane with the objects of the page, once for each machine, and has all
// machines join at once.
func (f *many) join(t *testing.T) {
	t.Helper()
	const page = "join-machines.md"
	const separator = "\n---\n"
	objects := strings.Split(documented(t, page, "kind: WorkloadGroup"), separator) // the last one is of the mesh
	all := objects[2:]
	for _, m := range f.joined {
		all = append(all, strings.ReplaceAll(strings.Join(objects[:2], separator), "orders", m.name))
	}
	f.control.write("/packages/shop.yaml", strings.Join(all, separator))
	install := documented(t, page, "outrigger join create")
	create := install[strings.Index(install, "sudo outrigger join create"):]
	f.control.follow(strings.TrimSuffix(install, create))
	commands := documented(t, page, "sudo outrigger join -")
	placeholder := lastLine(strings.TrimSpace(commands))
	outputs, errs := make([]string, len(f.joined)), make([]error, len(f.joined))
	var group sync.WaitGroup
	for i, m := range f.joined {
		line := lastLine(f.control.follow(strings.Replace(create, "account orders", "account "+m.name, 1)))
		group.Go(func() {
			outputs[i], errs[i] = m.try("bash", "-e", "-c", "cd /packages; sudo() { \"$@\"; }; "+strings.Replace(commands, placeholder, line, 1))
		})
	}
	group.Wait()
	for i, m := range f.joined {
		if errs[i] != nil || !strings.Contains(outputs[i], "this machine is part of the mesh") {
			t.Fatalf("%s: %v\n%s", m.name, errs[i], outputs[i])
		}
	}
}

func (m *machine) url() string { return "http://" + m.name + ".shop.svc.cluster.local/" }

// call requests the services of machines, and returns a line for each.
func (m *machine) call(others ...*machine) string {
	arguments := []string{"env", roleVariable + "=call", "/packages/app"}
	for _, other := range others {
		arguments = append(arguments, other.url())
	}
	output, _ := m.try(arguments...) // its lines count
	return output
}

// talk waits until each machine reaches each other one, which sees the identity of its caller.
func (f *many) talk(t *testing.T) {
	t.Helper()
	for _, m := range f.joined {
		var output string
		defer func() {
			if t.Failed() {
				t.Logf("%s:\n%s", m.name, output)
			}
		}()
		others := slices.DeleteFunc(slices.Clone(f.joined), func(other *machine) bool { return other == m })
		m.until(m.name+" reaches all others", func() bool {
			output = m.call(others...)
			return strings.Count(output, " hello spiffe://cluster.local/ns/shop/sa/"+m.name+" <nil>") == len(others)
		})
	}
}

// measure logs the memory of the programs on all machines: their proportional set sizes, in which
// the pages that machines share count once.
func (f *many) measure(t *testing.T) {
	t.Helper()
	type use struct{ number, kilobytes int }
	programs := map[string]use{}
	const script = `for p in /proc/[0-9]*; do read -r name < $p/comm && size=$(grep ^Pss: $p/smaps_rollup) && echo "$name $size"; done; true`
	for _, m := range append([]*machine{f.control}, f.joined...) {
		output := m.run("sh", "-c", script+" 2>/dev/null")
		for line := range strings.Lines(output) {
			fields := strings.Fields(line)
			if len(fields) != 4 {
				continue // a process that has ended
			}
			kilobytes, err := strconv.Atoi(fields[2])
			if err != nil {
				t.Fatal(err)
			}
			name := fields[0]
			if strings.HasPrefix(name, "systemd") {
				name = "systemd"
			}
			u := programs[name]
			programs[name] = use{u.number + 1, u.kilobytes + kilobytes}
		}
	}
	names := make([]string, 0, len(programs))
	sum := 0
	for name, u := range programs {
		names, sum = append(names, name), sum+u.kilobytes
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(programs[b].kilobytes, programs[a].kilobytes) })
	for _, name := range names {
		t.Logf("%-16s %3d processes %6.1f MiB each", name, programs[name].number, float64(programs[name].kilobytes)/1024/float64(programs[name].number))
	}
	t.Logf("%d machines use %.0f MiB", len(f.joined)+1, float64(sum)/1024)
}
