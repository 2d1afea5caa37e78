// consumecpu uses so many milli-cores, one core at most, for so many seconds. It is the program
// consume-cpu of upstream's image resource-consumer, whose own depends on a module that the suite's
// go.sum does not have.
package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"
)

func main() {
	milli := flag.Int("millicores", 0, "how much to use")
	seconds := flag.Int("duration-sec", 0, "for how long")
	flag.Parse()
	const turn = 5 * time.Millisecond
	for began, length := time.Now(), time.Duration(*seconds)*time.Second; time.Since(began) < length; {
		used, err := cpuTime()
		if err != nil {
			fmt.Fprintln(os.Stderr, "consume-cpu:", err)
			os.Exit(1)
		}
		if used >= time.Since(began)*time.Duration(*milli)/1000 {
			time.Sleep(turn)
			continue
		}
		for from := time.Now(); time.Since(from) < turn; { //nolint:revive // it is meant to use processor time
		}
	}
}

// cpuTime is what this process has used so far.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read the used processor time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
