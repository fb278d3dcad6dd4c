// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// Browse opens an address in the browser of the user with an environment. It returns when the program
// that does so ends, which may be that of the browser.
func Browse(environ []string, address string) error {
	set := func(name string) bool {
		return slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, name+"=") && len(v) > len(name)+1 })
	}
	cure := ": open " + address + " in one"
	switch {
	case set("SUDO_UID"):
		return errors.New("no browser is opened as another user than that of the desktop" + cure)
	case !set("DISPLAY") && !set("WAYLAND_DISPLAY") && !set("BROWSER"):
		return errors.New("no browser is opened, because neither DISPLAY nor WAYLAND_DISPLAY nor BROWSER is set" + cure)
	}
	for _, name := range []string{"xdg-open", "open"} {
		program, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		cmd := exec.Command(program, address)
		cmd.Env = environ
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a browser in the terminal would disturb the output
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("no browser was opened (%s: %w)%s", name, err, cure)
		}
		return nil
	}
	return errors.New("no browser is opened, because there is neither xdg-open nor open in PATH" + cure)
}
