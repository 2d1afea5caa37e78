package goroutinestack

import "testing"

// deep recurses with stack frames as large as those of a request.
//
//go:noinline
func deep(n int) (sum int) {
	var frame [32]int
	if n == 0 {
		return 0
	}
	for i := range frame {
		frame[i] = n
	}
	return deep(n-1) + frame[n%len(frame)]
}

func BenchmarkGrow(b *testing.B) {
	for name, grow := range map[string]func(){"doubled": func() {}, "grown": Grow} {
		b.Run(name, func(b *testing.B) {
			done := make(chan int)
			for b.Loop() {
				go func() {
					grow()
					done <- deep(60)
				}()
				<-done
			}
		})
	}
}
