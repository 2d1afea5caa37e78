package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
)

// profile writes a profile of the process into a file of the folder; without a folder it does nothing.
func profile(folder, kind, name string) error {
	if folder == "" {
		return nil
	}
	file, err := os.Create(filepath.Join(folder, name+".pprof"))
	if err != nil {
		return err
	}
	if err := errors.Join(pprof.Lookup(kind).WriteTo(file, 0), file.Close()); err != nil {
		return fmt.Errorf("write profile %s: %w", name, err)
	}
	return nil
}

// profileCPU measures what takes processor time, until done is called for the first time.
func profileCPU(folder string) (done func(), err error) {
	if folder == "" {
		return func() {}, nil
	}
	file, err := os.Create(filepath.Join(folder, "cpu.pprof"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return sync.OnceFunc(func() {
		pprof.StopCPUProfile()
		if err := file.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "write profile cpu:", err)
		}
	}), nil
}
